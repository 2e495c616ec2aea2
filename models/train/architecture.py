"""Shapes of the demo pair: a deep, thin target, and a drafter shaped like the target's first layers."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 1024


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Llama-style model with tied embeddings."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int


TARGET = Shape(layers=16, hidden=256, intermediate=640, heads=4, kv_heads=2)
DRAFTER = replace(TARGET, layers=2)


def build(shape: Shape, vocabulary: int, seed: int) -> LlamaForCausalLM:
    """Create a newly initialized float32 model. The weights are a pure function of the arguments."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(_config(shape, vocabulary))


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (bfloat16 safetensors), configuration and tokenizer in Hugging Face format."""
    stored = LlamaForCausalLM(copy.deepcopy(model.config)).to(torch.bfloat16)
    stored.load_state_dict(model.state_dict())
    stored.config.dtype = torch.bfloat16
    stored.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes mode 0600, which another user, such as a container's, cannot read


def load(folder: Path) -> LlamaForCausalLM:
    """Load the float32 model of a folder, in evaluation mode."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval()


def _config(shape: Shape, vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
