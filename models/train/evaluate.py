"""Evaluation of the trained pair: held-out loss, α at temperatures 1 and 0, and the cost ratio c."""

import math
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaForCausalLM

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


@dataclass(frozen=True)
class StepCost:
    """Median milliseconds of one 1-token decode step, one thread, and c = drafter step / target step."""

    target_ms: float
    drafter_ms: float

    @property
    def c(self) -> float:
        """Duration of a drafter step relative to a target step."""
        return self.drafter_ms / self.target_ms


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


def step_cost(target: LlamaForCausalLM, drafter: LlamaForCausalLM, steps: int = 100) -> StepCost:
    """Time alternating single-token steps of the two plain models, on one thread, after a short context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steppers = [_Stepper(target), _Stepper(drafter)]
        seconds = [[stepper.step() for stepper in steppers] for _ in range(steps)]
    finally:
        torch.set_num_threads(threads)
    target_seconds, drafter_seconds = (statistics.median(column) for column in zip(*seconds, strict=True))
    return StepCost(1000 * target_seconds, 1000 * drafter_seconds)


class _Stepper:
    """Decodes one token at a time with its own KV cache."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model
        self._cache = DynamicCache()
        self._forward(torch.zeros(1, PROMPT, dtype=torch.int64))

    def step(self) -> float:
        """Return the duration of one step, in seconds."""
        started = time.perf_counter()
        self._forward(torch.zeros(1, 1, dtype=torch.int64))
        return time.perf_counter() - started

    @torch.inference_mode()
    def _forward(self, ids: Tensor) -> int:
        logits = self._model(input_ids=ids.to(self._model.device), past_key_values=self._cache, use_cache=True).logits
        return int(logits[0, -1].argmax())
