"""The pair of tiny models whose law is computed exactly: eight ids, one layer, and different distributions."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specdec.sampling.vocabulary import fingerprint
from specdec.sources.counts import COUNTS_FILE, count, save_counts
from tests.conformance.model_folders import root
from tests.conformance.plain_model import PlainModel
from tests.support.tiny_models import END_TOKEN, make_tiny_model, make_tokenizer
from tests.support.tokenizers_apart import byte_level, fast

VOCAB_SIZE = 8
"""Number of ids: the end token, id 0, and seven more."""
END = 0
PROMPT = (3, 5, 1, 6)
REPETITIVE = (*PROMPT, 3, 5)
"""A prompt in which prompt lookup finds three draft tokens."""
SPREAD = 0.3
"""Scale of the weights: p has a mean entropy of 1.2 nats, and rows differ by a total variation of 0.5."""


@dataclass(frozen=True)
class Pair:
    """Two model folders whose distributions have a mean Σ min(p, q) of 0.56."""

    target: Path
    drafter: Path
    plain: PlainModel
    """The target, run by transformers."""
    plain_drafter: PlainModel
    """The drafter, run by transformers."""
    counts: Path
    """The folder of a bigram model with the same tokenizer."""
    stranger: Path
    """A drafter of eight ids whose tokenizer shares four tokens with the target's, under other ids."""


@cache
def small() -> Pair:
    """Return the pair, made once in each run."""
    folder = root() / "small"
    shape: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "layers": 1, "context": 64}
    target = make_tiny_model(folder / "target", seed=3, spread=SPREAD, **shape)
    drafter = make_tiny_model(folder / "drafter", seed=3, spread=SPREAD, noise=SPREAD / 4, **shape)
    return Pair(
        target,
        drafter,
        PlainModel(target),
        PlainModel(drafter),
        _counts(folder / "counts"),
        _stranger(folder / "stranger"),
    )


def _stranger(folder: Path) -> Path:
    make_tiny_model(folder, seed=5, vocab_size=VOCAB_SIZE, layers=1, context=64, spread=SPREAD)
    fast(byte_level(['$ "'], [END_TOKEN], '$"!()*'), END_TOKEN).save_pretrained(folder)
    return folder


def _counts(folder: Path) -> Path:
    """Write the bigram counts of a text in which some pairs are frequent and every token occurs."""
    text = [number * number % 7 + (number % 5 == 0) for number in range(200)]
    tokenizer = fingerprint(make_tokenizer(VOCAB_SIZE).get_vocab())
    save_counts(count(text, VOCAB_SIZE, tokenizer, order=2), folder / COUNTS_FILE)
    return folder
