"""Drafts of several drafters for one round, judged as one tree in which every proposal keeps its own q̂."""

import asyncio
from collections.abc import Sequence

from typing_extensions import override

from specdec.rules.draft import NO_DRAFT
from specdec.rules.tree_joining import as_tree, side_by_side
from specdec.wire.generation import Fallback
from verifier_service.drafters.drafts import Drafts, Proposal


class JoinedDrafts(Drafts):
    """Asks all its members at once. A round goes on with what those had that answered in time.

    Each member draws by numbers of its own; what all drew is judged, in the order of the members, and which of them
    answered depends on the past and the clock alone, so the output keeps the target's distribution.
    """

    def __init__(self, members: Sequence[Drafts]) -> None:
        self._members = members
        self._drafted = [0] * len(members)
        """Tokens of each member's last draft."""

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
    async def propose(self, gamma: int) -> Proposal:
        asked = zip(self._members, self._shares(gamma), strict=True)
        proposals = await asyncio.gather(*(each.propose(share) for each, share in asked))
        self._drafted = [len(each.draft.tokens) for each in proposals]
        made = [each for each in proposals if each.draft.tokens]
        return Proposal(
            draft=side_by_side([as_tree(each.draft) for each in made]).cut(gamma) if made else NO_DRAFT,
            fallback=Fallback.NONE if made else proposals[0].fallback,
            waited=max(each.waited for each in proposals),
            awaited=sum(each.awaited for each in proposals),
            drafter=" + ".join(each.drafter for each in made),
            local=all(each.local for each in proposals),
        )

    @override
    def hurry(self) -> None:
        for each in self._members:
            each.hurry()

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
        """The nodes of each member; the first ones get what is left over."""
        count = len(self._members)
        return [gamma // count + (place < gamma % count) for place in range(count)]
