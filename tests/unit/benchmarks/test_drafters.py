"""The drafters of the tables: counts are computed once for each tokenizer."""

from pathlib import Path

import pytest
import torch

from benchmarks import drafters
from benchmarks.pair import Pair
from specdec.sources.counts import COUNTS_FILE, count, load_counts, save_counts


def test_the_text_is_read_once_for_unigrams_and_bigrams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def write_bigrams(file: Path, tokenizer: Path) -> None:
        read.append(tokenizer)
        save_counts(count([1, 2, 1, 3, 1, 2], 4, "hash", 2), file)

    monkeypatch.setattr(drafters, "write_bigrams", write_bigrams)
    monkeypatch.setattr(drafters, "ROOT", tmp_path)
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"any")
    for _ in range(2):
        found = {each.name: each.path / COUNTS_FILE for each in drafters.candidates(Pair(tmp_path, tmp_path))[1:3]}
    assert read == [tmp_path]
    bigram, unigram = (load_counts(found[name]) for name in ("bigram", "unigram"))
    assert (bigram.order, unigram.order) == (2, 1)
    assert torch.equal(bigram.single, unigram.single)
    assert torch.equal(bigram.pairs, unigram.pairs)
