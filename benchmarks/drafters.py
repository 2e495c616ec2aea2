"""The drafters of the tables: the pair's own model, unigram and bigram counts, and repetitions in the context."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.machine import ROOT
from benchmarks.pair import Pair
from drafter_service.app import load_drafter as load_served
from drafter_service.config import DrafterSettings
from drafter_service.sessions.drafter import Drafter
from models.train.corpus import read_corpus, stdlib_root
from models.train.data import encode
from specdec.sampling import vocabulary
from specdec.sources.counts import COUNTS_FILE, count, load_counts, save_counts


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter to be measured."""

    name: str
    kind: str
    path: Path
    c_ops: float = 0.0
    """ĉ: operations of a draft step divided by those of a target step, from the sizes of the weights."""

    def load(self, *, compiled: bool = False) -> Drafter:
        """Load the drafter as the service would."""
        return load_drafter(self.kind, self.path, compiled=compiled)


def load_drafter(kind: str, path: Path, *, dtype: str = "float32", compiled: bool = False) -> Drafter:
    """Load a drafter as the service would."""
    model = {"path": path, "dtype": dtype, "compile": compiled}
    return load_served(DrafterSettings.load(None, {"model": model, "kind": kind, "ahead": 0}))


def candidates(pair: Pair) -> list[Candidate]:
    """Return all drafters to be measured. Counts are made for a tokenizer that has none yet."""
    return [
        Candidate("model", "model", pair.drafter, _weights(pair.drafter) / _weights(pair.target)),
        Candidate("bigram", "counts", _counts(pair.target, 2)),
        Candidate("unigram", "counts", _counts(pair.target, 1)),
        Candidate("prompt lookup", "prompt_lookup", pair.target),
    ]


def _counts(tokenizer: Path, order: int) -> Path:
    """Return the folder of counts of one order. Bigram counts include unigrams, so the text is read once."""
    digest = hashlib.sha256((tokenizer / "tokenizer.json").read_bytes()).hexdigest()
    bigrams, wanted = (ROOT / "build" / "counts" / f"{digest[:16]}-{each}" for each in (2, order))
    if not (bigrams / COUNTS_FILE).exists():
        write_bigrams(bigrams / COUNTS_FILE, tokenizer)
    if not (wanted / COUNTS_FILE).exists():
        save_counts(replace(load_counts(bigrams / COUNTS_FILE), order=order), wanted / COUNTS_FILE)
    return wanted


def write_bigrams(file: Path, tokenizer: Path) -> None:
    """Count bigrams of the standard library's sources, without the files held out from the pair's training."""
    loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    ids = loaded.get_vocab()
    text = encode(read_corpus(stdlib_root(), seed=0).train, loaded)
    save_counts(count(text, max(ids.values()) + 1, vocabulary.fingerprint(ids), order=2), file)


def _weights(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
