"""Checks of KV that outlives a sequence whose last drafts were rejected, and of sums over rounds."""

from collections import Counter
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from gateway.turns.statistics import Summary
from specdec.engine import Chunk, NativeEngine
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.rules.speculation import Mode, Speculation
from tests.conformance.checks.check import Check, count
from tests.conformance.small_pair import VOCAB_SIZE, small

ROUNDING = 1e-5
"""Largest float32 rounding error of a logit."""
TOKENS = tuple((3 * at * at + at) % VOCAB_SIZE for at in range(2 * BLOCK_TOKENS))
BEHIND = BLOCK_TOKENS - 2
"""Committed tokens before the rejected drafts, which reach into the next block."""


def wrong_restored_kv() -> float:
    """Count blocks that are missing or restore to other logits after drafts across a block boundary were rejected."""
    source = _engine()
    source.admit("s", 3 * BLOCK_TOKENS)
    rejected = tuple((token + 1) % VOCAB_SIZE for token in TOKENS[BEHIND : BEHIND + 5])
    source.forward([Chunk("s", TOKENS[:BEHIND] + rejected, 1)])
    source.truncate("s", BEHIND)
    source.forward([Chunk("s", TOKENS[BEHIND:], 1)])
    drafted = (TOKENS[:BEHIND] + rejected)[:BLOCK_TOKENS]
    committed = (TOKENS[:BLOCK_TOKENS], TOKENS)
    missing = sum(source.export_known(0, tokens) is None for tokens in committed)
    return missing + sum(_differs(source, tokens) for tokens in (*committed, drafted))


def _differs(source: NativeEngine, tokens: Sequence[int]) -> bool:
    """Whether the KV that the engine holds for these tokens, if any, differs from that of a fresh engine."""
    kv = source.export_known(0, tokens)
    if kv is None:
        return False
    return float((_next(tokens, kv) - _next(tokens, None)).abs().max()) > ROUNDING


def _next(tokens: Sequence[int], kv: Tensor | None) -> Tensor:
    """Return the logits after the tokens and one more, from restored or computed KV."""
    engine = _engine()
    engine.admit("s", len(tokens) + 1)
    if kv is None:
        engine.forward([Chunk("s", tokens, 0)])
    elif not engine.restore("s", 0, tokens, kv):
        return torch.full((VOCAB_SIZE,), torch.inf)
    return engine.forward([Chunk("s", (1,), 1)])[0]


def _engine() -> NativeEngine:
    return NativeEngine.load(small().target, dtype="float32", device="cpu", kv_bytes=1 << 22, threads=1)


def wrong_sums() -> float:
    """Count sums that differ from those of two single rounds, with none, some or all of a draft accepted."""
    bad = 0
    for rounds in product([(3, accepted) for accepted in range(4)], repeat=2):
        counts = Counter((drafted, accepted, "") for drafted, accepted in rounds)
        found = Summary(Speculation(Mode.REJECTION), counts)
        total = sum(accepted for _, accepted in rounds)
        expected = (2, 6, total, 1 + total / 2, total / 6)
        bad += expected != (
            found.num_spec_steps,
            found.num_draft_tokens,
            found.num_accepted_draft_tokens,
            found.mean_acceptance_length,
            found.draft_acceptance_rate,
        )
    return bad


CHECKS: tuple[Check, ...] = (
    count("KV restored after rejected drafts", wrong_restored_kv, crosses_a_border=True),
    count("sums over rounds", wrong_sums),
)
