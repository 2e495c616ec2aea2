"""Answers with a near tie: a pass in another batch rounds differently, so another token would also be correct."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.rules.rng import coordinates, exponential_on_host

_MARGIN = 1e-5
"""Least lead of a chosen token over the next, in logits or as a share of a race's time.

Float32 passes of one prefix differ by about 1e-6.
"""


class Judge:
    """Recomputes answers with the target, in one pass each."""

    def __init__(self, target: Path) -> None:
        """Load the model in the folder `target`."""
        self._model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)

    def has_near_tie(self, prompt: Sequence[int], output: Sequence[int], seed: int | None) -> bool:
        """Whether some token of `output` nearly was another one: greedy without a seed, of coupled mode with it."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        leads = _greedy_leads(logits) if seed is None else _race_leads(logits.softmax(-1), seed, len(prompt))
        return bool(leads.min() < _MARGIN)


def _greedy_leads(logits: Tensor) -> Tensor:
    best = logits.topk(2).values
    return best[:, 0] - best[:, 1]


def _race_leads(p: Tensor, seed: int, start: int) -> Tensor:
    """Return by how much the second token arrives later at each position, as a share of the first one's time."""
    rows, ids = torch.ones_like(p).nonzero(as_tuple=True)
    words = coordinates([seed] * len(p), range(start, start + len(p)))
    noise = exponential_on_host(words, rows, ids)
    first = (noise.view_as(p) / p).topk(2, largest=False).values
    return first[:, 1] / first[:, 0] - 1
