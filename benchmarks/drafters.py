"""The drafters of the tables: the pair's own, unigram and bigram counts, and what the context repeats."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.pair import Pair
from drafter_service.app import load_drafter as load_served
from drafter_service.config import DrafterSettings
from drafter_service.drafters.counts import COUNTS_FILE
from drafter_service.sessions.drafter import Drafter
from models.counts import main as write_counts


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may draft."""

    name: str
    kind: str
    path: Path
    c_ops: float = 0.0
    """ĉ: operations of a draft step over those of a target step, taken from the weights' sizes."""

    def load(self, *, compiled: bool = False) -> Drafter:
        """Load the drafter as the service would."""
        return load_drafter(self.kind, self.path, compiled=compiled)


def load_drafter(kind: str, path: Path, *, compiled: bool = False) -> Drafter:
    """A drafter as the service would load it."""
    return load_served(DrafterSettings.load(None, {"model": {"path": path, "compile": compiled}, "kind": kind}))


def candidates(pair: Pair) -> list[Candidate]:
    """All drafters that are measured; counts are made for a tokenizer that has none yet."""
    return [
        Candidate("model", "model", pair.drafter, _weights(pair.drafter) / _weights(pair.target)),
        Candidate("bigram", "ngram", _counts(pair.target, 2)),
        Candidate("unigram", "ngram", _counts(pair.target, 1)),
        Candidate("prompt lookup", "prompt_lookup", pair.target),
    ]


def _counts(tokenizer: Path, order: int) -> Path:
    digest = hashlib.sha256((tokenizer / "tokenizer.json").read_bytes()).hexdigest()
    folder = ROOT / "build" / "counts" / f"{digest[:16]}-{order}"
    if not (folder / COUNTS_FILE).exists():
        write_counts(folder, tokenizer, order)
    return folder


def _weights(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
