"""A tree is valid for exactly the committed tokens, and several drafters' trees are offered as one."""

import asyncio
from collections.abc import Callable, Sequence

from specdec.rules.draft import Draft, certain
from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode
from specdec.trees.tree import ROOT, Tree, TreeDraft
from specdec.wire.draft import DraftTokens
from specdec.wire.generation import Fallback
from tests.unit.verifier_service.drafts.proposing import proposed
from tests.unit.verifier_service.verifier_fakes import chunk_after
from verifier_service.drafts.draft_buffer import TreeBuffer
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.drafts.joined_drafts import JoinedDrafts

PREFIX = (1, 2, 3)
FORK = TreeDraft(Tree((ROOT, 0, ROOT)), (4, 5, 6))


def tree_after(prefix: Sequence[int], draft: TreeDraft = FORK) -> DraftTokens:
    return DraftTokens("s", 1, len(prefix), PrefixHash(prefix).value, draft)


def test_a_tree_is_taken_by_depth_and_dropped_with_its_prefix() -> None:
    buffer = TreeBuffer(PREFIX, 128)
    assert not buffer.holds(3)
    assert buffer.add(tree_after(PREFIX))
    assert (len(buffer), buffer.holds(9), buffer.end) == (3, True, 3)
    assert buffer.take(9).tokens == (4, 6, 5)
    assert buffer.take(2).tokens == (4, 6)
    assert buffer.advance((4, 9), 3)
    assert (len(buffer), buffer.committed, buffer.holds(3)) == (0, (1, 2, 3, 4, 9), False)
    assert buffer.take(3).tokens == ()


def test_a_tree_of_another_prefix_and_a_second_one_are_not_taken() -> None:
    buffer = TreeBuffer(PREFIX, 2)
    assert not buffer.add(tree_after((1, 2, 4)))
    assert not buffer.add(tree_after((1, 2)))
    assert buffer.add(tree_after(PREFIX))
    assert len(buffer) == 2
    assert not buffer.add(tree_after(PREFIX))
    buffer.clear()
    assert buffer.add(chunk_after(PREFIX, 7, 8))
    draft = buffer.take(2)
    assert isinstance(draft, TreeDraft)
    assert draft.tree == Tree.chain(2)


class Scripted(Drafts):
    """Proposes one draft and records its calls."""

    def __init__(self, draft: Draft | TreeDraft, name: str, *, local: bool = False) -> None:
        self.made = Proposal(draft, Fallback.NONE if draft.tokens else Fallback.LATE, 0.5, 2, name, local)
        self.told: list[object] = []

    def begin(self, gamma: int) -> None:
        self.told.append(gamma)

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        self.told.append(gamma)

    def proposal(self) -> Proposal:
        return self.made

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        self.told.append((tuple(tokens), judged, gamma))

    def source(self) -> str | None:
        return self.made.drafter

    def distrust(self) -> None:
        self.told.append("distrust")

    def close(self) -> None:
        self.told.append("close")


def test_members_share_the_nodes_and_learn_what_became_of_their_own() -> None:
    one, two = Scripted(FORK, "model"), Scripted(certain((4, 8), Mode.COUPLED), "ngram", local=True)
    joined = JoinedDrafts([one, two])
    joined.begin(7)
    proposal = asyncio.run(proposed(joined, 7))
    assert proposal.draft.tokens == (4, 6, 4, 5, 8)
    assert (proposal.drafter, proposal.awaited, proposal.local, joined.source()) == (
        "model + ngram",
        4,
        False,
        "model + ngram",
    )
    joined.commit((4, 8, 1), 5, 6)
    joined.distrust()
    joined.close()
    assert one.told == [4, 4, ((4, 8, 1), 3, 3), "distrust", "close"]
    assert two.told == [3, 3, ((4, 8, 1), 2, 3), "distrust", "close"]


def test_a_round_goes_on_with_what_came_and_is_cut_to_its_room() -> None:
    late = Scripted(Draft(), "model")
    proposal = asyncio.run(proposed(JoinedDrafts([late, Scripted(FORK, "other")]), 2))
    assert (proposal.draft.tokens, proposal.drafter, proposal.fallback) == ((4, 6), "other", Fallback.NONE)
    nothing = asyncio.run(proposed(JoinedDrafts([late, late]), 2))
    assert (nothing.draft.tokens, nothing.fallback) == ((), Fallback.LATE)
