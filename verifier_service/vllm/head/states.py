"""States that a pass of vLLM hands out for a head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

STATES = "specdec_states"
"""Attribute of a worker's output that holds the states of the pass, if a head reads them."""
TAPS = "specdec_taps"
"""Key of vLLM's `additional_config` that holds the layers whose input states a head reads."""


@dataclass(frozen=True, slots=True)
class PassStates:
    """States that a head reads, of all tokens of a pass, request after request."""

    layers: Sequence[Tensor]
    """States of each tap, in the order of the head [taps], each [at least the tokens of the pass, hidden]."""
    starts: Mapping[str, int]
    """Index of the first token of each request."""

    def of(self, request: str, count: int) -> Tensor:
        """Return the states of the first `count` tokens of a request [count, taps · hidden]."""
        start = self.starts[request]
        return torch.cat([layer[start : start + count] for layer in self.layers], -1)
