"""The pair of tiny models whose law is computed exactly: eight ids, one layer, and opinions that differ."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from drafter_service.drafters.counts import COUNTS_FILE, count, save_counts
from specdec.rules.vocabulary import fingerprint
from tests.conformance.folders import root
from tests.conformance.law import PlainModel
from tests.tiny_models import make_tiny_model, make_tokenizer

VOCAB_SIZE = 8
"""The end token, id 0, and seven more."""
END = 0
PROMPT = (3, 5, 1, 6)
REPETITIVE = (*PROMPT, 3, 5)
"""A prompt in which prompt lookup finds three drafts."""
SPREAD = 0.3
"""Weights that give p a mean entropy of 1.2 nats and make it differ by a total variation of 0.5 from row to row."""


@dataclass(frozen=True)
class Pair:
    """Two model folders: Σ min(p, q) is 0.56 in the mean."""

    target: Path
    drafter: Path
    plain: PlainModel
    """The target as transformers runs it."""
    plain_drafter: PlainModel
    counts: Path
    """The folder of a bigram model of the same tokenizer."""


@cache
def small() -> Pair:
    """Made once a run."""
    folder = root() / "small"
    shape: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "layers": 1, "context": 64}
    target = make_tiny_model(folder / "target", seed=3, spread=SPREAD, **shape)
    drafter = make_tiny_model(folder / "drafter", seed=3, spread=SPREAD, noise=SPREAD / 4, **shape)
    return Pair(target, drafter, PlainModel(target), PlainModel(drafter), _counts(folder / "counts"))


def _counts(folder: Path) -> Path:
    """Of a text in which some pairs are frequent and every token comes."""
    text = [number * number % 7 + (number % 5 == 0) for number in range(200)]
    tokenizer = fingerprint(make_tokenizer(VOCAB_SIZE).get_vocab())
    save_counts(count(text, VOCAB_SIZE, tokenizer, order=2), folder / COUNTS_FILE)
    return folder
