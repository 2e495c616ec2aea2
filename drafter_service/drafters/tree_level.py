"""Drafts the next level of several trees from logits: q after each node, its number of children, and their draws."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from drafter_service.sessions.tree_growth import TreeFamily
from drafter_service.sessions.tree_session import TreeSession
from specdec.rules.coupling import earliest
from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.proposal import propose_siblings
from specdec.sampling.distribution import probabilities

Drawn = tuple[Sequence[int], SparseProbs | None]
"""Draws after a node, in order, and their q̂."""


def next_levels(sessions: Sequence[TreeSession], logits: Sequence[Tensor], support: int) -> list[list[TreeFamily]]:
    """Return, for each session, the children of each frontier node.

    Args:
        logits: for each session, rows after each node of the last level, or after the sequence for the root [rows, V].
        support: maximum number of ids in q̂.

    Raises:
        NoDistribution: a row has no distribution.
    """
    nodes = [(session, node) for session in sessions for node in session.growth.frontier]
    index = [[node - session.growth.first for node in session.growth.frontier] for session in sessions]
    rows = torch.cat([own[places] for own, places in zip(logits, index, strict=True)])
    q = probabilities(
        rows, [session.params.ranking for session, _ in nodes], [session.history_at(node) for session, node in nodes]
    )
    most = max(session.plan.width for session in sessions)
    weights = q.topk(min(most, q.shape[1])).values.tolist()
    left = iter(weights)
    widths = [
        width
        for session in sessions
        for width in session.growth.widths(list(islice(left, len(session.growth.frontier))))
    ]
    drawn = _draw([session for session, _ in nodes], q, support, widths)
    families = (TreeFamily(tokens, law, best) for (tokens, law), best in zip(drawn, weights, strict=True))
    return [list(islice(families, len(session.growth.frontier))) for session in sessions]


def _draw(sessions: Sequence[TreeSession], q: Tensor, support: int, widths: Sequence[int]) -> Iterator[Drawn]:
    """Draw tokens after each row of q: as many as the row's width, with the parameters of its session."""
    groups: dict[tuple[Siblings, bool, int], list[int]] = defaultdict(list)
    for row, session in enumerate(sessions):
        siblings = Siblings.of(session.mode, replacement=session.plan.replacement)
        groups[siblings, session.params.temperature > 0.0, session.plan.first_place].append(row)
    drawn: dict[int, Drawn] = {}
    for (siblings, sampled, first), rows in groups.items():
        seeds = [sessions[row].params.seed for row in rows]
        positions = [len(sessions[row]) + sessions[row].growth.level for row in rows]
        part, width = q if len(rows) == len(q) else q[rows], max(widths[row] for row in rows)
        laws: Sequence[SparseProbs | None] = ()
        if siblings is Siblings.DETERMINISTIC and sampled:
            mass, ids = part.topk(min(support, q.shape[1]))
            families = earliest(mass.cpu(), ids.cpu(), seeds, positions, width)
        else:
            places = range(first, first + width)
            families, laws = propose_siblings(siblings, part, seeds, positions, support, places)
        own = zip(families, laws or [None] * len(rows), strict=True)
        drawn |= {row: (tokens[: widths[row]], law) for row, (tokens, law) in zip(rows, own, strict=True)}
    return (drawn[row] for row in range(len(sessions)))
