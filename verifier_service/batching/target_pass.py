"""One target pass over a batch of sessions: logits -> p -> verdicts -> KV cut back to what was committed.

Runs on the thread that owns the engine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import structlog
import torch
from torch import Tensor

from specdec.engine import Chunk, Engine
from specdec.errors import InternalError, NoDistribution
from specdec.rules.draft import Verdict
from specdec.rules.evidence import evidence
from specdec.rules.lenience import lenient_greedy
from specdec.rules.sampling import History, probabilities
from specdec.rules.scoring import score
from specdec.rules.transfer import to_device
from specdec.rules.tree import TreeDraft
from verifier_service.batching.batch_plan import Row, ScheduledChunk
from verifier_service.batching.tree_rows import judge_rows, judged_row, keep

NO_TOKEN = "the model has no next token for this sequence: logits are NaN, infinite or masked throughout"

_log = structlog.get_logger()

Result = Verdict | InternalError | None
"""What became of a chunk; None where nothing was judged."""


def verify_batch(engine: Engine, batch: Sequence[ScheduledChunk]) -> list[Result]:
    """Run a batch; on return each judged row's KV covers its committed tokens but the last, which is pending.

    When the pass fails, every length is rolled back and each session runs alone: an error stays with the session that
    caused it. A row that fails with its draft runs without, so a broken draft costs a round its speed and no more. That
    does not hold for a row without a distribution, which may be due to a draft token: to draw again would bias the
    output. Behind a rejected draft it changes nothing, and where the verdict reaches it, plain decoding fails as well.
    """
    try:
        return _pass(engine, batch)
    except Exception as error:  # noqa: BLE001 - whatever a model raises, the thread and the other sessions live on
        for chunk in batch:
            engine.truncate(chunk.row.kv_name, chunk.start)
        if len(batch) > 1:
            return [verify_batch(engine, [chunk])[0] for chunk in batch]
        return [_without_draft(engine, batch[0], error)]


def _without_draft(engine: Engine, chunk: ScheduledChunk, error: Exception) -> Result:
    """Run a chunk that failed again without its drafts, unless it has none or the target has no distribution for it."""
    session = chunk.row.kv_name
    if isinstance(error, NoDistribution):
        _log.error("no_distribution", session=session, error=str(error))
        return NoDistribution(NO_TOKEN)
    if chunk.drafts:
        _log.warning("draft_unusable", session=session, error=str(error))
        return verify_batch(engine, [replace(chunk, most=0)])[0]
    _log.error("pass_failed", session=session, exc_info=error)
    return InternalError("the model failed on this sequence")


def _pass(engine: Engine, batch: Sequence[ScheduledChunk]) -> list[Result]:
    judged = [judged_row(chunk) for chunk in batch]
    logits = engine.forward([_engine_chunk(chunk, row) for chunk, row in zip(batch, judged, strict=True)])
    rows = [row for row in judged if row is not None]
    verdicts = iter(judge_batch(rows, logits) if rows else [])
    return [
        None if row is None else keep(engine, chunk, next(verdicts)) for chunk, row in zip(batch, judged, strict=True)
    ]


def _engine_chunk(chunk: ScheduledChunk, row: Row | None) -> Chunk:
    """The tokens that the engine computes; a judged row needs logits after its last token and after each draft."""
    tokens = tuple(chunk.row.tokens[chunk.start : chunk.start + chunk.count])
    if row is None:
        return Chunk(chunk.row.kv_name, tokens, logits=0)
    parents = row.draft.tree.after(chunk.count).parents if isinstance(row.draft, TreeDraft) else None
    return Chunk(row.kv_name, tokens + row.draft.tokens, len(row.draft.tokens) + 1, parents)


def judge_batch(rows: Sequence[Row], logits: Tensor) -> list[Verdict]:
    """One verdict for each row; `logits` [Σ(γ+1), V], row after row."""
    sizes = [len(row.draft.tokens) + 1 for row in rows]
    params = [row.call.sampling for row, size in zip(rows, sizes, strict=True) for _ in range(size)]
    histories = [history for row in rows for history in _histories(row)]
    p = probabilities(logits, params, histories)
    lenience = _lenience(rows)
    if lenience is not None:
        p = lenient_greedy(p, logits, params, histories, [row.draft for row in rows], lenience)
    verdicts, starts = judge_rows(rows, p, lenience), [0, *accumulate(sizes)]
    return _scored(rows, starts, logits, _explained(rows, starts, p, verdicts))


def _explained(rows: Sequence[Row], starts: Sequence[int], p: Tensor, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, with the numbers that they rest on for each row of a chain that wants them; p is [Σ(γ+1), V]."""
    explained = list(verdicts)
    for b, row in enumerate(rows):
        asked = row.call.speculation
        if asked.detail and not isinstance(row.draft, TreeDraft):
            own, seed = p[starts[b] : starts[b + 1]], row.call.sampling.seed
            judged = evidence(asked.mode, own, row.draft, seed, row.goal, asked.lenience)
            explained[b] = replace(verdicts[b], judged_tokens=judged)
    return explained


def _lenience(rows: Sequence[Row]) -> list[float] | None:
    """ℓ of each row; None when all are exact, which costs nothing."""
    if not any(row.call.speculation.lossy for row in rows):
        return None
    return [row.call.speculation.lenience for row in rows]


def _scored(rows: Sequence[Row], starts: Sequence[int], logits: Tensor, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, with the log probabilities of their tokens for each row that wants them.

    Args:
        rows: that were judged [B].
        starts: the first of each row's logits [B + 1].
        logits: [Σ(γ+1), V].
        verdicts: of the rows [B].
    """
    scored = list(verdicts)
    wanted = {b: row.call.logprobs for b, row in enumerate(rows) if row.call.logprobs is not None}
    if not wanted:
        return scored
    index = [starts[b] + row for b in wanted for row in verdicts[b].rows]
    tokens = [token for b in wanted for token in verdicts[b].tokens]
    (of_tokens,) = to_device(logits.device, torch.tensor(index))
    scores = iter(score(logits[of_tokens], tokens, max(wanted.values())))
    for b, most in wanted.items():
        logprobs = tuple(next(scores).cut(most) for _ in verdicts[b].tokens)
        scored[b] = replace(verdicts[b], logprobs=logprobs)
    return scored


def _histories(row: Row) -> Iterator[History]:
    """What penalties and grammar see at each position: the drafts before it on its own path are output."""
    history, drafts = row.history, row.draft.tokens
    histories = iter([history] * (len(drafts) + 1))
    if row.call.sampling.needs_history:
        histories = (History(history.prompt, (*history.output, *path)) for path in row.draft.before)
    if row.grammar is None:
        return histories
    masks = row.grammar.masks(row.tokens[row.call.prompt_len :], drafts)
    return (replace(seen, allowed=mask) for seen, mask in zip(histories, masks, strict=True))
