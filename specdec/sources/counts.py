"""Counts of tokens and of token pairs, made from a text, stored in one file and used by the n-gram model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdec.errors import ModelRefused

COUNTS_FILE = "counts.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Number of occurrences of each token and of each pair of adjacent tokens."""

    tokenizer_hash: str
    order: int
    """2 for bigrams; 1 for unigrams, which do not depend on the context."""
    single: Tensor
    """Occurrences of each token, float32 [V]."""
    starts: Tensor
    """Offsets, int64 [V + 1]: the pairs that begin with token t lie at starts[t]..starts[t + 1] - 1."""
    seconds: Tensor
    """Second token of each pair, int64 [pairs], ascending for each first token."""
    pairs: Tensor
    """Occurrences of each pair, float32 [pairs]."""


def count(tokens: Sequence[int] | Tensor, vocab_size: int, tokenizer_hash: str, order: int) -> Counts:
    """Count a text of at least two tokens; ids are below `vocab_size`."""
    text = torch.as_tensor(tokens, dtype=torch.long)
    keys, pairs = torch.unique(text[:-1] * vocab_size + text[1:], return_counts=True)
    firsts = keys // vocab_size
    starts = torch.searchsorted(firsts, torch.arange(vocab_size + 1))
    single = text.bincount(minlength=vocab_size).float()
    return Counts(tokenizer_hash, order, single, starts, keys % vocab_size, pairs.float())


def save_counts(counts: Counts, file: Path) -> None:
    """Write the file, and create its folder when it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"single": counts.single, "starts": counts.starts, "seconds": counts.seconds, "pairs": counts.pairs}
    save_file(tensors, file, {"tokenizer_hash": counts.tokenizer_hash, "order": str(counts.order)})


def load_counts(file: Path) -> Counts:
    """Read the file.

    Raises:
        ModelRefused: the file does not exist, or does not hold counts.
    """
    try:
        with safe_open(file, "pt") as stored:
            facts = stored.metadata()
            tensors = {name: stored.get_tensor(name) for name in ("single", "starts", "seconds", "pairs")}
            return Counts(facts["tokenizer_hash"], int(facts["order"]), **tensors)
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ModelRefused(f"{file}: no counts that can be read: {error}") from error
