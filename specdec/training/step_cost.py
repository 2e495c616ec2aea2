"""Duration of a drafter's decode step relative to the target's."""

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from specdec.training.weights import CausalModel

_CONTEXT = 128
"""Number of tokens before the timed steps."""


@dataclass(frozen=True)
class StepCost:
    """Median milliseconds of one 1-token decode step, one thread, and c = drafter step / target step."""

    target_ms: float
    drafter_ms: float

    @property
    def c(self) -> float:
        """Duration of a drafter step relative to a target step."""
        return self.drafter_ms / self.target_ms


def step_cost(target: CausalModel, drafter: CausalModel, steps: int = 100) -> StepCost:
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

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._cache = DynamicCache()
        self._forward(torch.zeros(1, _CONTEXT, dtype=torch.int64))

    def step(self) -> float:
        """Return the duration of one step, in seconds."""
        started = time.perf_counter()
        self._forward(torch.zeros(1, 1, dtype=torch.int64))
        return time.perf_counter() - started

    @torch.inference_mode()
    def _forward(self, ids: Tensor) -> int:
        logits = self._model(input_ids=ids.to(self._model.device), past_key_values=self._cache, use_cache=True).logits
        return int(logits[0, -1].argmax())
