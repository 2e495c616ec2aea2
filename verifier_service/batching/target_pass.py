"""One target pass over a batch of sessions: logits -> p -> verdicts -> KV cut back to what was committed.

Runs on the thread that owns the engine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

import structlog
import torch
from torch import Tensor

from specdec.engine import Chunk
from specdec.errors import InternalError, NoDistribution
from specdec.rules.draft import Verdict
from specdec.rules.lenience import lenient_greedy
from specdec.rules.sampling import History, probabilities
from specdec.rules.scoring import score
from specdec.rules.transfer import to_device
from specdec.rules.verification import verify_each
from verifier_service.batching.batch_plan import Row, ScheduledChunk
from verifier_service.batching.kv_admission import KvEngine

_log = structlog.get_logger()

Result = Verdict | InternalError | None
"""None where nothing was judged."""


class TargetEngine(KvEngine, Protocol):
    """What a pass needs of an engine."""

    def truncate(self, session: str, length: int) -> None:
        """Keep the KV of the first `length` tokens."""

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Append KV for all chunks and return the logits they want."""


def verify_batch(engine: TargetEngine, batch: Sequence[ScheduledChunk]) -> list[Result]:
    """Run a batch; on return each judged row's KV covers its committed tokens but the last, which is pending.

    When the pass fails, every length is rolled back and each session runs alone: an error stays with the session that
    caused it. A row that fails with its draft runs without, so a broken draft costs a round its speed and no more.
    """
    try:
        return _pass(engine, batch)
    except Exception as error:  # noqa: BLE001 - whatever a model raises, the thread and the other sessions live on
        for share in batch:
            engine.truncate(share.work.session, share.start)
        if len(batch) > 1:
            return [verify_batch(engine, [share])[0] for share in batch]
        return [_without_draft(engine, batch[0], error)]


def _without_draft(engine: TargetEngine, share: ScheduledChunk, error: Exception) -> Result:
    work = share.work
    if share.drafts:
        _log.warning("draft_unusable", session=work.session, error=str(error))
        return verify_batch(engine, [replace(share, most=0)])[0]
    _log.error("pass_failed", session=work.session, exc_info=error)
    if isinstance(error, NoDistribution):
        return NoDistribution(f"the model has no next token for this sequence: {error.message}")
    return InternalError("the model failed on this sequence")


def _pass(engine: TargetEngine, batch: Sequence[ScheduledChunk]) -> list[Result]:
    logits = engine.forward([_chunk(share) for share in batch])
    judged = [share.row for share in batch]
    rows = [row for row in judged if row is not None]
    verdicts = iter(_verdicts(rows, logits) if rows else [])
    results: list[Result] = []
    for row in judged:
        verdict = None if row is None else next(verdicts)
        if row is not None and verdict is not None:
            engine.truncate(row.session, row.goal + verdict.accepted)
        results.append(verdict)
    return results


def _chunk(share: ScheduledChunk) -> Chunk:
    row, tokens = share.row, tuple(share.work.tokens[share.start : share.start + share.count])
    if row is None:
        return Chunk(share.work.session, tokens, logits=0)
    return Chunk(row.session, tokens + row.draft.tokens, logits=len(row.draft.tokens) + 1)


def _verdicts(rows: Sequence[Row], logits: Tensor) -> list[Verdict]:
    """One verdict a row; `logits` [Σ(γ+1), V], row after row."""
    sizes = [len(row.draft.tokens) + 1 for row in rows]
    params = [row.params for row, size in zip(rows, sizes, strict=True) for _ in range(size)]
    histories = [history for row in rows for history in _histories(row)]
    p = probabilities(logits, params, histories)
    modes, drafts, lenience = [row.mode for row in rows], [row.draft for row in rows], _lenience(rows)
    if lenience is not None:
        p = lenient_greedy(p, logits, params, histories, drafts, lenience)
    verdicts = verify_each(modes, p, drafts, [row.params.seed for row in rows], [row.goal for row in rows], lenience)
    return _scored(rows, [0, *accumulate(sizes)], logits, verdicts)


def _lenience(rows: Sequence[Row]) -> list[float] | None:
    """ℓ of each row; None when all are exact, which costs nothing."""
    return [row.lenience for row in rows] if any(row.lenience < 1.0 for row in rows) else None


def _scored(rows: Sequence[Row], starts: Sequence[int], logits: Tensor, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, with the log probabilities of their tokens where a row asks for them."""
    asked = [b for b, row in enumerate(rows) if row.logprobs is not None]
    if not asked:
        return list(verdicts)
    index = [starts[b] + step for b in asked for step in range(len(verdicts[b].tokens))]
    tokens = [token for b in asked for token in verdicts[b].tokens]
    most = max(rows[b].logprobs or 0 for b in asked)
    (of_tokens,) = to_device(logits.device, torch.tensor(index))
    scores = iter(score(logits[of_tokens], tokens, most))
    scored = list(verdicts)
    for b in asked:
        own = tuple(next(scores).cut(rows[b].logprobs or 0) for _ in verdicts[b].tokens)
        scored[b] = replace(verdicts[b], logprobs=own)
    return scored


def _histories(row: Row) -> Iterator[History]:
    """What penalties see at each position: the drafts before it count as output, for the bonus all of them."""
    drafts = row.draft.tokens
    if not row.params.needs_history:
        return iter([row.history] * (len(drafts) + 1))
    prompt, output = row.history.prompt, tuple(row.history.output)
    return (History(prompt, output + drafts[:seen]) for seen in range(len(drafts) + 1))
