"""Evaluation of the trained pair: held-out loss, and α at temperatures 1 and 0."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from models.train.architecture import CONTEXT
from models.train.data import Windows
from models.train.sampling import continue_rows

PROMPT = 128
CONTINUATION = 128
ROWS = 64


@dataclass(frozen=True)
class HeldOutLoss:
    """Cross-entropy on held-out text."""

    nats_per_token: float
    bits_per_byte: float


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, tokens: Tensor, text_bytes: int) -> HeldOutLoss:
    """Return the loss over a row of tokens in full-context windows, predicting every token but the first once."""
    nats = 0.0
    for start in range(0, len(tokens) - 1, CONTEXT):
        window = tokens[start : start + CONTEXT + 1].to(model.device)
        logits = model(input_ids=window[None, :-1], use_cache=False).logits[0]
        nats += functional.cross_entropy(logits.float(), window[1:], reduction="sum").item()
    return HeldOutLoss(nats / (len(tokens) - 1), nats / math.log(2) / text_bytes)


def overlap(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return α at temperature 1, Σ min(p, q), for each position; logits are [..., vocabulary]."""
    return torch.minimum(p_logits.softmax(-1), q_logits.softmax(-1)).sum(-1)


def agreement(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Return α at temperature 0 for each position: 1 if both argmaxes are the same token, else 0."""
    return (p_logits.argmax(-1) == q_logits.argmax(-1)).float()


@torch.inference_mode()
def alpha(
    target: LlamaForCausalLM, drafter: LlamaForCausalLM, held_out: Tensor, temperature: float, seed: int
) -> float:
    """Return the mean α over the target's own continuations of held-out prompts, at temperature 0 or 1."""
    prompts = Windows(held_out, PROMPT, seed).batch(0, ROWS)[:, :-1].to(target.device)
    generator = torch.Generator(target.device).manual_seed(seed)
    rows = continue_rows(target, prompts, CONTINUATION, temperature, generator)
    estimate = agreement if temperature == 0 else overlap
    return estimate(_continuation_logits(target, rows), _continuation_logits(drafter, rows)).mean().item()


def _continuation_logits(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=rows[:, :-1], use_cache=False).logits[:, PROMPT - 1 :]
    return logits.float()
