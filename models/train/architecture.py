"""Shapes of the demo pair: a deep, thin target, and a drafter shaped like the target's first layers."""

from dataclasses import dataclass, replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

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
