"""Expected drafts, computed with a fresh pass for every token, and received drafts, in the same form."""

from collections.abc import Sequence

import pytest
from torch import Tensor

from specdec.engine import Chunk, NativeEngine
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.wire.draft import DraftTokens
from tests.integration.drafter.verifier_by_hand import PARAMS, PROMPT

SUPPORT = 8
"""Number of ids in each q̂."""

Row = tuple[int, list[int], object]
"""A token, and the ids and weights it was drawn from. The reference's weights allow for rounding in other batches."""


def reference(
    engine: NativeEngine,
    count: int,
    tokens: Sequence[int] = PROMPT,
    mode: Mode = Mode.REJECTION,
    params: SamplingParams = PARAMS,
) -> list[Row]:
    """Return the drafts expected after `tokens`, computed with a fresh pass over the whole prefix each time."""
    rows: list[Row] = []
    for _ in range(count):
        prefix = [*tokens, *(token for token, _, _ in rows)]
        q = probabilities(_logits(engine, prefix), [params], [History(prefix[: len(PROMPT)], prefix[len(PROMPT) :])])
        (token,), probs = propose(mode, q, [params.seed], [len(prefix)], SUPPORT, starts=[len(tokens)])
        ids, weights = (probs[0].ids.tolist(), probs[0].weights.tolist()) if probs else ([], [])
        rows.append((token, ids, pytest.approx(weights, abs=2)))
    return rows


def received(chunks: Sequence[DraftTokens]) -> list[Row]:
    """Return the drafts in the chunks, in the form of `reference`."""
    rows: list[Row] = []
    for chunk in chunks:
        supports = [(probs.ids.tolist(), probs.weights.tolist()) for probs in chunk.draft.probs]
        drawn = zip(chunk.draft.tokens, supports or [([], [])] * len(chunk.draft.tokens), strict=True)
        rows += [(token, *support) for token, support in drawn]
    return rows


def _logits(engine: NativeEngine, prefix: list[int]) -> Tensor:
    assert engine.admit("reference", len(prefix))
    try:
        return engine.forward([Chunk("reference", prefix, logits=1)])
    finally:
        engine.release("reference")
