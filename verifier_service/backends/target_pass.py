"""One target pass over a batch of sessions: logits -> p -> verdicts -> KV truncated to the committed tokens.

Runs on the thread that owns the engine.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import structlog
import torch
from torch import Tensor

from specdec.engine import Chunk, Engine
from specdec.engine.protocol import PathKeeper
from specdec.errors import AllMasked, InternalError, NoDistribution
from specdec.rules.draft import NO_DRAFT, Verdict
from specdec.rules.evidence import evidence
from specdec.rules.lenience import lenient_greedy
from specdec.rules.multidraft import Siblings
from specdec.rules.verification import verify_certain, verify_each
from specdec.sampling.cache import at_once
from specdec.sampling.distribution import History, certain_tokens, probabilities
from specdec.sampling.params import SamplingParams
from specdec.sampling.scoring import score
from specdec.sampling.transfer import to_device
from specdec.trees.joining import merged
from specdec.trees.tree import TreeDraft
from specdec.trees.verification import verify_certain_trees, verify_tree
from verifier_service.backends.batch_plan import Row, ScheduledChunk

NO_TOKEN = "the model has no next token for this sequence: logits are NaN, infinite or masked throughout"
ALL_MASKED = "the grammar, the allowed and the banned tokens of this request leave no token here"

_log = structlog.get_logger()

Result = Verdict | InternalError | None
"""Result of a chunk; None if nothing was judged."""


def verify_batch(engine: Engine, batch: Sequence[ScheduledChunk]) -> list[Result]:
    """Run a batch. On return, each judged row has KV for its committed tokens except the last, which is pending.

    If the pass fails, all lengths are rolled back and each session runs alone, so that an error affects only the
    session that caused it. A row that cannot be judged does not fail the pass, since callers can cause that. A row that
    fails with a draft runs again without it.

    The exception is a row without a distribution, which a draft token may have caused: drawing again would bias the
    output. If the missing distribution follows a rejected draft, it has no effect. If the verdict reaches it, plain
    decoding would fail as well.
    """
    try:
        return _pass(engine, batch)
    except Exception as error:  # noqa: BLE001 - an error of the model must not affect other sessions
        for chunk in batch:
            engine.truncate(chunk.row.kv_name, chunk.start)
        if len(batch) > 1:
            return [verify_batch(engine, [chunk])[0] for chunk in batch]
        return [_without_draft(engine, batch[0], error)]


def _without_draft(engine: Engine, chunk: ScheduledChunk, error: Exception) -> Result:
    """Rerun a failed chunk without its drafts, unless it has none or the target has no distribution for it."""
    session = chunk.row.kv_name
    if isinstance(error, AllMasked):
        return error
    if isinstance(error, NoDistribution):
        _log.error("no_distribution", session=session, error=str(error))
        return NoDistribution(NO_TOKEN)
    if chunk.drafts:
        _log.warning("draft_unusable", session=session, error=str(error))
        return verify_batch(engine, [replace(chunk, row=replace(chunk.row, draft=NO_DRAFT))])[0]
    _log.error("pass_failed", session=session, exc_info=error)
    return InternalError("the model failed on this sequence")


def _pass(engine: Engine, batch: Sequence[ScheduledChunk]) -> list[Result]:
    judged = [judged_row(chunk) for chunk in batch]
    chunks = [_engine_chunk(chunk, row) for chunk, row in zip(batch, judged, strict=True)]
    logits = engine.forward(chunks)
    if any(chunk.scored for chunk in batch):
        logits = _score_prompts(batch, chunks, judged, logits)
    rows = [row for row in judged if row is not None]
    verdicts = iter(judge_apart(rows, logits) if rows else [])
    return [
        None if row is None else _concluded(engine, chunk, next(verdicts))
        for chunk, row in zip(batch, judged, strict=True)
    ]


def _concluded(engine: Engine, chunk: ScheduledChunk, judged: Verdict | Exception) -> Result:
    """Keep the KV of a verdict, or handle the error of a row that was not judged."""
    if isinstance(judged, Verdict):
        return keep(engine, chunk, judged)
    engine.truncate(chunk.row.kv_name, chunk.start)
    return _without_draft(engine, chunk, judged)


def _engine_chunk(chunk: ScheduledChunk, row: Row | None) -> Chunk:
    """Return the tokens that the engine computes, with the number of rows of logits.

    A judged row needs logits after its last token and after each draft. A scored prompt needs logits after each token.
    """
    tokens = tuple(chunk.row.tokens[chunk.start : chunk.start + chunk.count])
    if row is None:
        return Chunk(chunk.row.kv_name, tokens, logits=len(tokens) if chunk.scored else 0)
    parents = row.draft.tree.after(chunk.count).parents if isinstance(row.draft, TreeDraft) else None
    tokens += row.draft.tokens
    return Chunk(row.kv_name, tokens, len(tokens) if chunk.scored else len(row.draft.tokens) + 1, parents)


def _score_prompts(
    batch: Sequence[ScheduledChunk], chunks: Sequence[Chunk], judged: Sequence[Row | None], logits: Tensor
) -> Tensor:
    """Score the prompts of the batch, and return the logits of the judged rows in the layout of `judge_batch`.

    Args:
        batch: scheduled chunks.
        chunks: chunks that the engine computed.
        judged: row of each chunk that gets a verdict, else None.
        logits: logits of the chunks, one after the other.
    """
    kept: list[Tensor] = []
    own = logits.split_with_sizes([chunk.logits for chunk in chunks])
    for scheduled, row, rows in zip(batch, judged, own, strict=True):
        if scheduled.scored and scheduled.row.scores is not None:
            scheduled.row.scores.add(scheduled.start, rows[: scheduled.scored])
        kept.append(rows[len(rows) - (0 if row is None else len(row.draft.tokens) + 1) :])
    return torch.cat(kept)


def judge_apart(rows: Sequence[Row], logits: Tensor) -> list[Verdict | Exception]:
    """Return one verdict for each row, or the error of a row that cannot be judged; arguments as in `judge_batch`.

    The halves of a failed batch are judged again, so that a row that fails costs the others little.
    """
    try:
        return list(judge_batch(rows, logits))
    except Exception as error:  # noqa: BLE001 - an error in one row must not affect the others
        if len(rows) == 1:
            nothing = isinstance(error, NoDistribution) and _masks_all(rows[0], logits.shape[1])
            return [AllMasked(ALL_MASKED) if nothing else error]
    half = len(rows) // 2
    first = sum(len(row.draft.tokens) + 1 for row in rows[:half])
    return [*judge_apart(rows[:half], logits[:first]), *judge_apart(rows[half:], logits[first:])]


def _masks_all(row: Row, vocab_size: int) -> bool:
    """Whether the request allows no token at a position of the row, whatever the logits are."""
    params, histories = _conditions([row])
    _, mass = certain_tokens(torch.zeros(len(params), vocab_size), params, histories)
    return bool(mass.isnan().any())


def judge_batch(rows: Sequence[Row], logits: Tensor) -> list[Verdict]:
    """Return one verdict for each row; `logits` [Σ(γ+1), V] are in the order of the rows."""
    starts, lenience = [0, *accumulate(len(row.draft.tokens) + 1 for row in rows)], _lenience(rows)
    exact = [True] * len(rows) if lenience is None else [ell == 1.0 for ell in lenience]
    certain = [b for b, row in enumerate(rows) if logits.is_cpu and exact[b] and _certain(row)]
    verdicts: dict[int, Verdict] = {}
    if certain:
        verdicts |= zip(
            certain, _judge_certain([rows[b] for b in certain], _part(logits, starts, certain)), strict=True
        )
    for members in _cached([b for b in range(len(rows)) if b not in verdicts], starts, logits):
        ells = None if lenience is None else [lenience[b] for b in members]
        judged = _judge_drawn([rows[b] for b in members], _part(logits, starts, members), ells)
        verdicts |= zip(members, judged, strict=True)
    return _scored(rows, starts, logits, [verdicts[b] for b in range(len(rows))])


def _certain(row: Row) -> bool:
    """Whether the verdict on an exact row needs only the most likely token at each position, not distributions."""
    greedy = row.call.sampling.temperature == 0.0
    return greedy and not row.call.speculation.detail


def _cached(members: Sequence[int], starts: Sequence[int], logits: Tensor) -> Iterator[list[int]]:
    """Yield the rows in parts to judge together. On a CPU, the logits of a part fit the processor's cache."""
    most, part, size = at_once(logits.shape[1]) if logits.is_cpu else len(logits), list[int](), 0
    for b in members:
        own = starts[b + 1] - starts[b]
        if part and size + own > most:
            yield part
            part, size = [], 0
        part, size = [*part, b], size + own
    if part:
        yield part


def _part(logits: Tensor, starts: Sequence[int], members: Sequence[int]) -> Tensor:
    """Return the logits of some rows, as a view if the rows are adjacent."""
    first, last = members[0], members[-1]
    if len(members) == last - first + 1:
        return logits[starts[first] : starts[last + 1]]
    (index,) = to_device(logits.device, torch.tensor([i for b in members for i in range(starts[b], starts[b + 1])]))
    return logits[index]


def _judge_certain(rows: Sequence[Row], logits: Tensor) -> list[Verdict]:
    """Return the verdicts on rows at temperature 0."""
    best, mass = certain_tokens(logits, *_conditions(rows))
    groups = _by_rule(rows)
    if list(groups) == [None]:
        return _certain_verdicts(None, rows, best, mass, logits.shape[1])
    verdicts, starts = dict[int, Verdict](), [0, *accumulate(len(row.draft.tokens) + 1 for row in rows)]
    for siblings, members in groups.items():
        some = [rows[b] for b in members]
        own = [index for b in members for index in range(starts[b], starts[b + 1])]
        judged = _certain_verdicts(siblings, some, best[own], mass[own], logits.shape[1])
        verdicts |= zip(members, judged, strict=True)
    return [verdicts[b] for b in range(len(rows))]


def _certain_verdicts(
    siblings: Siblings | None, rows: Sequence[Row], best: Tensor, mass: Tensor, vocab_size: int
) -> list[Verdict]:
    """Return the verdicts on rows at temperature 0 of one rule, None for chains; `best` and `mass` are [Σ(γ+1)]."""
    if siblings is not None:
        trees = [row.draft for row in rows if isinstance(row.draft, TreeDraft)]
        return verify_certain_trees(siblings, best, mass, trees, vocab_size)
    modes = [row.call.speculation.mode for row in rows]
    chains = [row.draft for row in rows if not isinstance(row.draft, TreeDraft)]
    return verify_certain(modes, best, mass, chains, vocab_size)


def _judge_drawn(rows: Sequence[Row], logits: Tensor, lenience: Sequence[float] | None) -> list[Verdict]:
    """Return the verdicts by the target's distributions, at any temperature."""
    params, histories = _conditions(rows)
    p = probabilities(logits, params, histories)
    if lenience is not None:
        p = lenient_greedy(p, logits, params, histories, [row.draft for row in rows], lenience)
    verdicts = judge_rows(rows, p, lenience)
    starts = [0, *accumulate(len(row.draft.tokens) + 1 for row in rows)]
    return _explained(rows, starts, p, verdicts)


def _conditions(rows: Sequence[Row]) -> tuple[list[SamplingParams], list[History]]:
    """Return the sampling parameters and the history of each row of logits."""
    params = [row.call.sampling for row in rows for _ in range(len(row.draft.tokens) + 1)]
    return params, [history for row in rows for history in _histories(row)]


def _explained(rows: Sequence[Row], starts: Sequence[int], p: Tensor, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts, with per-token details for each chain whose call requests them; p is [Σ(γ+1), V]."""
    explained = list(verdicts)
    for b, row in enumerate(rows):
        asked = row.call.speculation
        if asked.detail and not isinstance(row.draft, TreeDraft):
            own, seed = p[starts[b] : starts[b + 1]], row.call.sampling.seed
            judged = evidence(asked.mode, own, row.draft, seed, row.goal, asked.lenience)
            explained[b] = verdicts[b]._replace(judged_tokens=judged)
    return explained


def _lenience(rows: Sequence[Row]) -> list[float] | None:
    """Return ℓ of each row, or None if all rows are exact."""
    if not any(row.call.speculation.lossy for row in rows):
        return None
    return [row.call.speculation.lenience for row in rows]


def _scored(rows: Sequence[Row], starts: Sequence[int], logits: Tensor, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts, with log probabilities for each row whose call requests them.

    Args:
        rows: judged rows [B].
        starts: index of each row's first logits [B + 1].
        logits: logits [Σ(γ+1), V].
        verdicts: verdicts on the rows [B].
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
        scored[b] = verdicts[b]._replace(logprobs=logprobs)
    return scored


def _histories(row: Row) -> Iterator[History]:
    """Yield the history for penalties and grammar at each position. Drafts before it on its path count as output."""
    history, drafts = row.history, row.draft.tokens
    histories = iter([history] * (len(drafts) + 1))
    if row.call.sampling.needs_history:
        histories = (History(history.prompt, (*history.output, *path)) for path in row.draft.before)
    if row.grammar is None:
        return histories
    masks = row.grammar.masks(row.tokens[row.call.prompt_len :], drafts)
    return (replace(seen, allowed=mask) for seen, mask in zip(histories, masks, strict=True))


def judged_row(chunk: ScheduledChunk) -> Row | None:
    """Return the row that a pass judges, with equal siblings of a tree merged, or None if it judges nothing."""
    row = chunk.judged
    if row is None or not isinstance(row.draft, TreeDraft):
        return row
    return replace(row, draft=merged(row.draft))


def judge_rows(rows: Sequence[Row], p: Tensor, lenience: Sequence[float] | None) -> list[Verdict]:
    """Return the verdicts on chains and trees, each by its own rule.

    Args:
        rows: rows to judge [B].
        p: distributions in the order of the rows, one more for each row than its draft has tokens.
        lenience: ℓ of each row [B], 1 for trees; None means 1 for all.
    """
    groups = _by_rule(rows)
    if list(groups) == [None]:
        return _judge_chains(rows, p, lenience)
    starts = [0, *accumulate(len(row.draft.tokens) + 1 for row in rows)]
    verdicts: dict[int, Verdict] = {}
    for siblings, members in groups.items():
        some = [rows[b] for b in members]
        part = p[[index for b in members for index in range(starts[b], starts[b + 1])]]
        if siblings is None:
            ells = None if lenience is None else [lenience[b] for b in members]
            verdicts |= zip(members, _judge_chains(some, part, ells), strict=True)
        else:
            verdicts |= zip(members, _judge_trees(siblings, some, part), strict=True)
    return [verdicts[b] for b in range(len(rows))]


def keep(engine: Engine, chunk: ScheduledChunk, verdict: Verdict) -> Verdict:
    """Keep the KV of the committed tokens except the last, which is pending; return the verdict on the whole chunk."""
    name = chunk.row.kv_name
    if verdict.path is None:
        engine.truncate(name, chunk.row.goal + len(verdict.tokens) - 1)
        return verdict
    if not isinstance(engine, PathKeeper):
        raise InternalError("this engine keeps no paths of trees")
    engine.keep(name, chunk.start, [*range(chunk.count), *(chunk.count + node for node in verdict.path)])
    return verdict._replace(drafted=chunk.drafts)


def _by_rule(rows: Sequence[Row]) -> dict[Siblings | None, list[int]]:
    """Return the rows' indices by the method of their siblings, None for chains."""
    groups: dict[Siblings | None, list[int]] = defaultdict(list)
    for b, row in enumerate(rows):
        groups[_siblings(row)].append(b)
    return groups


def _siblings(row: Row) -> Siblings | None:
    """Return how the siblings of the row's tree were drawn, or None for a chain."""
    speculation = row.call.speculation
    if not isinstance(row.draft, TreeDraft):
        return None
    return Siblings.of(speculation.mode, replacement=speculation.tree is not None and speculation.tree.replacement)


def _judge_chains(rows: Sequence[Row], p: Tensor, lenience: Sequence[float] | None) -> list[Verdict]:
    modes, seeds = [row.call.speculation.mode for row in rows], [row.call.sampling.seed for row in rows]
    drafts = [row.draft for row in rows if not isinstance(row.draft, TreeDraft)]
    return verify_each(modes, p, drafts, seeds, [row.goal for row in rows], lenience)


def _judge_trees(siblings: Siblings, rows: Sequence[Row], p: Tensor) -> list[Verdict]:
    drafts = [row.draft for row in rows if isinstance(row.draft, TreeDraft)]
    return verify_tree(siblings, p, drafts, [row.call.sampling.seed for row in rows], [row.goal for row in rows])
