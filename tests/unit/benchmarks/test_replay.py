"""Replayed texts: the tokens that a source has read when it drafts."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from benchmarks.replay import Replayer
from benchmarks.texts import Replayed
from specdec.engine import Chunk, NativeEngine

_VOCABULARY = 64


class Lengths:
    """An engine that computes nothing and tracks the length of its session."""

    vocab_size = _VOCABULARY

    def __init__(self) -> None:
        self._length = 0

    def admit(self, _session: str, _limit: int) -> bool:
        return True

    def reserve(self, _session: str, _length: int) -> bool:
        return True

    def release(self, _session: str) -> None:
        self._length = 0

    def length(self, _session: str) -> int:
        return self._length

    def truncate(self, _session: str, length: int) -> None:
        self._length = length

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        self._length += sum(len(chunk.tokens) for chunk in chunks)
        return torch.zeros(sum(chunk.logits for chunk in chunks), _VOCABULARY)


def test_a_prompt_that_is_read_in_pieces_is_drafted_from() -> None:
    text = tuple(range(60)) * 5
    replayer = Replayer(cast(NativeEngine, Lengths()), "suffix")
    replayer.run(Replayed(text, text[:120]))
    assert replayer.tally.tokens >= 120
    assert replayer.tally.accepted > 60
