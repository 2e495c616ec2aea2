"""Bugs in what a round leaves: KV that other sessions may share, and sums over rounds."""

from collections.abc import Sequence

import pytest
from torch import Tensor

from gateway.turns.statistics import Summary
from specdec.engine import Chunk, NativeEngine
from specdec.engine.kv.pool import PrefixCache
from tests.conformance.bugs.bug import Bug, Law


def rejected_position_sealed(patch: pytest.MonkeyPatch) -> None:
    """Blocks are sealed as soon as they are full and stay sealed when drafts in them are rejected."""
    forward = NativeEngine.forward

    def planted(engine: NativeEngine, chunks: Sequence[Chunk]) -> Tensor:
        logits = forward(engine, chunks)
        engine.held(())
        return logits

    patch.setattr(NativeEngine, "forward", planted)
    patch.setattr(PrefixCache, "unseal", lambda cache, sequence: None)


def fruitless_rounds_left_out(patch: pytest.MonkeyPatch) -> None:
    """Rounds with no accepted draft are not counted."""
    histogram = Summary.acceptance_histogram

    def planted(summary: Summary) -> tuple[int, ...]:
        return (0, *histogram.__get__(summary)[1:])

    patch.setattr(Summary, "acceptance_histogram", property(planted))


BUGS = (
    Bug("rejected position sealed", Law.KV, rejected_position_sealed, ("KV restored after rejected drafts",)),
    Bug("rounds without an accepted draft left out", Law.CUT, fruitless_rounds_left_out, ("sums over rounds",)),
)
