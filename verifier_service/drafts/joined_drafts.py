"""Drafts of several drafters for one round, verified as one tree in which every proposal keeps its own q̂."""

import math
from collections.abc import Callable, Sequence

from typing_extensions import override

from specdec.rules.draft import NO_DRAFT
from specdec.trees.joining import as_tree, side_by_side
from specdec.wire.generation import Fallback
from verifier_service.drafts.drafts import Drafts, Proposal


class JoinedDrafts(Drafts):
    """Asks all its members at once. A round uses the drafts of the members that answer in time.

    Each member draws with its own random numbers, and the tree holds the drafts in the order of the members. Which
    members answer depends only on the past and the clock, so the output keeps the target's distribution.
    """

    def __init__(self, members: Sequence[Drafts]) -> None:
        self._members = members
        self._drafted = [0] * len(members)
        """Length of each member's last draft, in tokens."""
        self._gamma = 0
        """Number of nodes requested for the round."""
        self._made: list[Proposal | None] = [None] * len(members)
        """Proposal of each member for the round; None until it arrives."""

    @property
    @override
    def guesses(self) -> bool:
        return any(each.guesses for each in self._members)

    @override
    def source(self) -> str | None:
        names = [name for each in self._members if (name := each.source()) is not None]
        return " + ".join(names) or None

    @override
    def begin(self, gamma: int) -> None:
        for each, share in zip(self._members, self._shares(gamma), strict=True):
            each.begin(share)

    @override
    def declined(self) -> Fallback:
        return self._members[0].declined()

    @override
    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        self._gamma, self._made = gamma, [None] * len(self._members)
        for each, share in zip(self._members, self._shares(gamma), strict=True):
            each.request(share, changed)

    @override
    def proposal(self) -> Proposal | None:
        self._made = [made or each.proposal() for made, each in zip(self._made, self._members, strict=True)]
        proposals = [made for made in self._made if made is not None]
        if len(proposals) < len(self._members):
            return None
        self._drafted = [len(each.draft.tokens) for each in proposals]
        made = [each for each in proposals if each.draft.tokens]
        return Proposal(
            draft=side_by_side([as_tree(each.draft) for each in made]).cut(self._gamma) if made else NO_DRAFT,
            fallback=Fallback.NONE if made else proposals[0].fallback,
            waited=max(each.waited for each in proposals),
            awaited=sum(each.awaited for each in proposals),
            drafter=" + ".join(each.drafter for each in made),
            local=all(each.local for each in proposals),
        )

    @property
    @override
    def patience(self) -> float:
        waiting = [each for made, each in zip(self._made, self._members, strict=True) if made is None]
        return min((each.patience for each in waiting), default=math.inf)

    @override
    def stop_waiting(self) -> None:
        for each in self._members:
            each.stop_waiting()

    @override
    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        for each, drafted, share in zip(self._members, self._drafted, self._shares(gamma), strict=True):
            each.commit(tokens, drafted if judged else 0, share)

    @override
    def distrust(self) -> None:
        for each in self._members:
            each.distrust()

    @override
    def close(self) -> None:
        for each in self._members:
            each.close()

    def _shares(self, gamma: int) -> list[int]:
        """Return the number of nodes for each member. The first members get the remainder."""
        count = len(self._members)
        return [gamma // count + (place < gamma % count) for place in range(count)]
