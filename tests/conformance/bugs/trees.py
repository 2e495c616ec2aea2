"""Bugs in trees: the q̂ that judges a draw, the order of proposals, the set of proposals, and the row of a token."""

from collections.abc import Iterator, Sequence

import pytest

from specdec.sampling.distribution import History
from specdec.trees import verification as tree_verification
from specdec.trees.joining import merged
from specdec.trees.tree import ROOT, Draws, TreeDraft
from tests.conformance.bugs.bug import Bug, Law, everywhere
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import Row

drawn = TreeDraft.drawn


def one_q(patch: pytest.MonkeyPatch) -> None:
    """The draws of every drafter are judged by the q̂ of the first drafter."""

    def planted(draft: TreeDraft, node: int) -> tuple[Draws, ...]:
        return tuple(Draws(each.children, drawn(draft, node)[0].law) for each in drawn(draft, node))

    patch.setattr(TreeDraft, "drawn", planted)
    patch.setattr(tree_verification, "check_trees", lambda *_: None)


def order_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Siblings are judged in the order of their ids instead of the order of the draw."""

    def planted(draft: TreeDraft, node: int) -> tuple[Draws, ...]:
        return tuple(
            Draws(tuple(sorted(each.children, key=draft.tokens.__getitem__)), each.law) for each in drawn(draft, node)
        )

    patch.setattr(TreeDraft, "drawn", planted)


def second_proposal_dropped(patch: pytest.MonkeyPatch) -> None:
    """A token that two drafters drew is judged once, by the q̂ of the first."""

    def planted(draft: TreeDraft) -> TreeDraft:
        one = merged(draft)
        seen: set[int] = set()
        proposals = []
        for node in range(ROOT, len(one.tree)):
            left = []
            for each in one.drawn(node):
                left.append(Draws(tuple(child for child in each.children if child not in seen), each.law))
                seen.update(each.children)
            proposals.append(tuple(left))
        return TreeDraft(one.tree, one.tokens, proposals=tuple(proposals))

    everywhere(patch, merged, planted)


def history_of_the_row_before(patch: pytest.MonkeyPatch) -> None:
    """Penalties at a node see all earlier nodes, including those on other paths."""

    def planted(row: Row) -> Iterator[History]:
        history, drafts = row.history, row.draft.tokens
        return (History(history.prompt, (*history.output, *drafts[:seen])) for seen in range(len(drafts) + 1))

    patch.setattr(target_pass, "_histories", planted)


def row_by_depth(patch: pytest.MonkeyPatch) -> None:
    """The token after a path is drawn from the row that a chain of that length would have."""

    rows = tree_verification._rows

    def planted(drafts: Sequence[TreeDraft], going: Sequence[int], nodes: Sequence[int]) -> list[int]:
        depths = [-1 if node == ROOT else drafts[b].tree.depths[node] for b, node in zip(going, nodes, strict=True)]
        return rows(drafts, going, depths)

    patch.setattr(tree_verification, "_rows", planted)


BUGS = (
    Bug("one q for all siblings", Law.SIBLINGS, one_q, ("sampled trees of two drafters",)),
    Bug("order of siblings forgotten", Law.SIBLINGS, order_forgotten, ("sampled trees of two drafters",)),
    Bug(
        "merged without both proposals",
        Law.SIBLINGS,
        second_proposal_dropped,
        ("sampled trees of two drafters",),
    ),
    Bug(
        "penalties of the wrong path",
        Law.ONE_DISTRIBUTION,
        history_of_the_row_before,
        ("penalties along the paths of a tree",),
    ),
    Bug("bonus from the wrong node", Law.RESIDUAL, row_by_depth, ("sampled trees",)),
)
