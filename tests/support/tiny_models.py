"""Tiny Hugging Face model folders, made when needed: random weights, a byte-level tokenizer and all other files."""

from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

END_TOKEN = "<|endoftext|>"
END_TOKEN_ID = 0
WINDOW = 9
"""Sliding window of the architectures that have one, shorter than the tests' sequences."""

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "head_dim": 8},
    "qwen2": {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "gpt2": {"n_inner": 48},
    "gemma2": {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 0.5,
        "final_logit_softcapping": 9.0,
    },
    "mistral": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": WINDOW},
    "phi": {"num_key_value_heads": 2, "partial_rotary_factor": 0.5},
    "phi3": {"num_key_value_heads": 2, "sliding_window": WINDOW},
    "gpt_oss": {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
"""Settings specific to each architecture."""


_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 4}


def make_tiny_model(
    folder: Path,
    architecture: str = "llama",
    seed: int = 0,
    *,
    vocab_size: int = 320,
    padding: int = 0,
    layers: int = 2,
    context: int = 256,
    noise: float = 0.0,
    spread: float = 0.2,
    **settings: Any,
) -> Path:
    """Write a model folder and return it.

    Args:
        folder: target folder, created if missing.
        architecture: model type of transformers. Types in ARCHITECTURES get fitting settings.
        seed: random seed of the weights.
        vocab_size: number of the tokenizer's ids. The tokenizer depends on nothing else.
        padding: rows of the model's matrices beyond the tokenizer's ids.
        layers: number of hidden layers.
        context: maximum sequence length, in tokens.
        noise: standard deviation of noise added to every weight. The same seed with little noise gives a good drafter.
        spread: standard deviation of the weights. Larger values give sharper and more context-dependent distributions.
        settings: further settings of the model's configuration.
    """
    config = AutoConfig.for_model(
        architecture,
        vocab_size=vocab_size + padding,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=context,
        bos_token_id=END_TOKEN_ID,
        eos_token_id=END_TOKEN_ID,
        pad_token_id=END_TOKEN_ID,
        **(_SIZES | ARCHITECTURES.get(architecture, {}) | settings),
    )
    logging.disable_progress_bar()
    with torch.random.fork_rng():
        model = _random_model(config, seed, noise, spread)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    make_tokenizer(vocab_size).save_pretrained(folder)
    return folder


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Make a byte-level BPE tokenizer of that many ids: end token, bytes (printable ones first), pairs of letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(first, second) for first, second in product(ascii_lowercase, repeat=2)]
    merges = pairs[: max(0, vocab_size - 1 - len(alphabet))]
    words = [END_TOKEN, *alphabet, *(first + second for first, second in merges)][:vocab_size]
    if len(words) < vocab_size:
        raise ValueError(f"vocab_size is at most {len(words)}")
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_TOKEN,
        chat_template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}",
    )


def _random_model(config: Any, seed: int, noise: float, spread: float) -> Any:
    """Make weights so large that attention affects every logit and no two logits are close."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    parameters: list[Tensor] = [p for p in model.parameters() if p.dim() > 1]
    for parameter in parameters:
        nn.init.normal_(parameter, std=spread)
    if noise:
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model.eval()
