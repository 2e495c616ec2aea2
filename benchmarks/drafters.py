"""The drafters of the tables: the pair's own, unigram and bigram counts, and what the context repeats."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pair import Pair
from drafter_service.app import load_drafter as load_served
from drafter_service.config import DrafterSettings
from drafter_service.drafters.base import Drafter
from models.counts import main as write_counts


@dataclass(frozen=True, slots=True)
class Candidate:
    """A loaded drafter."""

    name: str
    drafter: Drafter
    c_ops: float
    """ĉ: operations of a draft step over those of a target step, taken from the weights' sizes."""


def load_drafter(kind: str, path: Path) -> Drafter:
    """A drafter as the service would load it."""
    return load_served(DrafterSettings.load(None, {"model": {"path": path}, "kind": kind}))


def candidates(pair: Pair, folder: Path) -> Iterator[Candidate]:
    """All of them; `folder` takes the files of counts."""
    yield Candidate("model", load_drafter("model", pair.drafter), _weights(pair.drafter) / _weights(pair.target))
    for order, name in ((2, "bigram"), (1, "unigram")):
        write_counts(folder / name, pair.target, order)
        yield Candidate(name, load_drafter("ngram", folder / name), 0.0)
    yield Candidate("prompt lookup", load_drafter("prompt_lookup", pair.target), 0.0)


def _weights(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
