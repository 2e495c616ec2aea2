"""Rows whose drafts are trees: their verdicts beside those on chains, and the path that stays in KV."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from torch import Tensor

from specdec.engine import Engine
from specdec.engine.protocol import PathKeeper
from specdec.errors import InternalError
from specdec.rules.draft import Verdict
from specdec.rules.multidraft import Siblings
from specdec.rules.verification import verify_each
from specdec.trees.joining import merged
from specdec.trees.tree import TreeDraft
from specdec.trees.verification import verify_tree
from verifier_service.backends.batch_plan import Row, ScheduledChunk


def judged_row(chunk: ScheduledChunk) -> Row | None:
    """What a pass judges of a chunk, with equal siblings of a tree as one node; None when it judges nothing."""
    row = chunk.judged
    if row is None or not isinstance(row.draft, TreeDraft):
        return row
    return replace(row, draft=merged(row.draft))


def judge_rows(rows: Sequence[Row], p: Tensor, lenience: Sequence[float] | None) -> list[Verdict]:
    """The verdicts on chains and trees, each by its own rule.

    Args:
        rows: that are judged [B].
        p: one row more than each draft has tokens, row after row.
        lenience: ℓ of each row [B], 1 for trees; None is 1.
    """
    groups: dict[Siblings | None, list[int]] = defaultdict(list)
    for b, row in enumerate(rows):
        groups[_siblings(row)].append(b)
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
    """Keep the KV of the committed tokens but the last, which is pending; returns the verdict on the whole chunk."""
    name = chunk.row.kv_name
    if verdict.path is None:
        engine.truncate(name, chunk.row.goal + len(verdict.tokens) - 1)
        return verdict
    if not isinstance(engine, PathKeeper):
        raise InternalError("this engine keeps no paths of trees")
    engine.keep(name, chunk.start, [*range(chunk.count), *(chunk.count + node for node in verdict.path)])
    return replace(verdict, drafted=chunk.drafts)


def _siblings(row: Row) -> Siblings | None:
    """How the children of the row's tree were made; None for a chain."""
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
