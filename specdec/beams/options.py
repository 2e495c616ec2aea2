"""Options of beam search: frozen values, validated on construction."""

import math
from dataclasses import dataclass
from enum import StrEnum

from specdec.errors import FieldInvalid

MAX_WIDTH = 16
"""Most beams of a search."""


class EarlyStopping(StrEnum):
    """Condition that ends a search once it has as many finished beams as it is wide."""

    ESTIMATE = "false"
    """No running beam scores higher than the worst finished one by its present length."""
    FULL = "true"
    """None: the search ends at once."""
    NEVER = "never"
    """No running beam can score higher than the worst finished one at any length."""


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """The beam search of one request.

    Raises:
        FieldInvalid: a field is out of range.
    """

    width: int
    """Number of beams."""
    length_penalty: float = 1.0
    """Exponent of the length by which the log probability of a finished beam is divided."""
    early_stopping: EarlyStopping = EarlyStopping.ESTIMATE

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_WIDTH:
            raise FieldInvalid(f"beam_width must be in 1..{MAX_WIDTH}, got {self.width}", "beam_width")
        if not (math.isfinite(self.length_penalty) and abs(self.length_penalty) <= 10.0):
            raise FieldInvalid(f"length_penalty must be in [-10, 10], got {self.length_penalty}", "length_penalty")


def candidates(width: int, ends: int) -> int:
    """Return the number of candidates of a step: enough for `width` beams that run on if all others end.

    Args:
        ends: number of ids that end a beam.
    """
    return max(2, 1 + ends) * width


@dataclass(frozen=True, slots=True)
class BeamReport:
    """Result of a search beside its tokens."""

    score: float
    """Log probability of the tokens, divided by their number to the power of the length penalty."""
    steps: int
    """Steps of the search: one token for every beam."""
    accepted: int
    """Steps that needed no pass of their own, because a drafter had proposed all their beams."""
