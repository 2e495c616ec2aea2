"""The pair of tiny models whose law is computed exactly: eight ids, one layer, and opinions that differ."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.conformance.folders import root
from tests.conformance.law import PlainModel
from tests.tiny_models import make_tiny_model

VOCAB_SIZE = 8
"""The end token, id 0, and seven more."""
END = 0
PROMPT = (3, 5, 1, 6)
SPREAD = 0.3
"""Weights that give p a mean entropy of 1.2 nats and make it differ by a total variation of 0.5 from row to row."""


@dataclass(frozen=True)
class Pair:
    """Two model folders: Σ min(p, q) is 0.56 in the mean."""

    target: Path
    drafter: Path
    plain: PlainModel
    """The target as transformers runs it."""


@cache
def small() -> Pair:
    """Made once a run."""
    folder = root() / "small"
    shape: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "layers": 1, "context": 64}
    target = make_tiny_model(folder / "target", seed=3, spread=SPREAD, **shape)
    drafter = make_tiny_model(folder / "drafter", seed=3, spread=SPREAD, noise=SPREAD / 4, **shape)
    return Pair(target, drafter, PlainModel(target))
