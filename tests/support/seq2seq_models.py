"""Tiny encoder-decoder folders, made when needed: random weights and the tests' byte-level tokenizer."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers.utils import logging

from tests.support.tiny_models import END_TOKEN_ID, make_tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "bart": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "max_position_embeddings": 128,
        "forced_eos_token_id": None,
    },
}
"""Settings of each architecture."""


def make_seq2seq_model(
    folder: Path,
    architecture: str,
    seed: int = 0,
    *,
    vocab_size: int = 320,
    noise: float = 0.0,
    spread: float = 0.2,
    **settings: Any,
) -> Path:
    """Write a model folder and return its path.

    The arguments are those of `make_tiny_model`. `settings` replace those of the architecture.
    """
    ids = {"pad_token_id": END_TOKEN_ID, "eos_token_id": END_TOKEN_ID, "decoder_start_token_id": END_TOKEN_ID}
    config = AutoConfig.for_model(
        architecture, vocab_size=vocab_size, bos_token_id=END_TOKEN_ID, **ids, **SHAPES[architecture] | settings
    )
    logging.disable_progress_bar()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=spread)
        for parameter in model.parameters():
            parameter.data += noise * torch.randn_like(parameter)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer = make_tokenizer(vocab_size)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    return folder
