"""Drafts from sources in this process, with a remote drafter as the fallback when no source has a draft."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from specdec.planning.gamma import FixedGamma
from specdec.rules.draft import NO_DRAFT, Draft, certain
from specdec.rules.prefix import common_length
from specdec.rules.speculation import Mode
from specdec.sources.sampled import CountSampling, drafted
from specdec.sources.source import DraftSource
from specdec.wire.features import Features
from specdec.wire.generation import Fallback
from verifier_service.backends.batch_plan import Gathers
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.drafts.local_gamma import LocalGamma, SourceWorth

_PIECE = 256
"""Tokens read in one piece. A piece blocks the event loop for a few milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalSource:
    """One in-process draft source of a session."""

    kind: str
    source: DraftSource
    gamma: FixedGamma | LocalGamma
    """Chooses the largest draft length."""
    worth: SourceWorth | None = None
    """Worth of the source over all sessions. None if the request fixes γ, so that the source always drafts."""
    sampling: CountSampling | None = None
    """How drafts are drawn from the counts of a source that has any; None drafts its guesses as point masses."""

    def draft(self, most: int, position: int, mode: Mode) -> Draft:
        """Return a draft of up to `most` tokens after the `position` committed ones; empty without a guess."""
        if most <= 0:
            return NO_DRAFT
        drawn = drafted(self.source, self.sampling, (), most, position, position)
        return certain(self.source.draft((), most), mode) if drawn is None else drawn

    def observe(self, drafted: int, accepted: int) -> None:
        """Update the estimates from a round."""
        self.gamma.observe(drafted, accepted)
        if self.worth is not None:
            self.worth.observe(drafted, accepted)


class LocalDrafts(Drafts):
    """Asks the sources in order, and then a drafter.

    The choice depends on committed tokens and on the clock, never on tokens that a drafter has drawn, so the output
    keeps the target's distribution. A draft of the drafter that was not requested stays buffered and is not judged.
    """

    def __init__(
        self,
        sources: Sequence[LocalSource],
        tokens: Sequence[int],
        room: int,
        mode: Mode,
        drafter: Drafts | None,
        length: int = 0,
    ) -> None:
        """Create the drafts of one session.

        Args:
            sources: sources that have not read any tokens.
            tokens: the last tokens of the sequence, which the sources read first.
            room: number of tokens that the sequence may still get.
            mode: speculation mode, which decides whether drafts carry a q̂.
            drafter: fallback when no source has a draft; None for no fallback.
            length: length of the sequence, in tokens.
        """
        self._sources = sources
        self._unread = list(tokens)
        self._room = room
        self._mode = mode
        self._drafter = drafter
        self._length = length
        self._reading: asyncio.Task[None] | None = None
        self._used: LocalSource | None = None
        """The source that made the last draft, or None."""
        self._draft = NO_DRAFT
        self._own: Proposal | None = None
        """Proposal of the sources for the requested round; None if the drafter is asked."""
        self._asked = False
        """Whether a source had γ > 0 in this round, or the prompt was still being read."""

    @property
    @override
    def gathers(self) -> Gathers:
        return Gathers.NOT if self._drafter is None else self._drafter.gathers

    @property
    @override
    def reads_states(self) -> bool:
        return self._drafter is not None and self._drafter.reads_states

    @property
    @override
    def guesses(self) -> bool:
        slight = all(each.worth and each.worth.is_slight for each in self._sources)
        return self._used in self._sources or not slight

    @override
    def begin(self, gamma: int) -> None:
        self._read(_PIECE)
        if self._unread:
            self._reading = asyncio.create_task(self._read_all())
        if self._drafter is not None:
            self._drafter.begin(gamma)

    @override
    def source(self) -> str | None:
        return None if self._drafter is None else self._drafter.source()

    @override
    def declined(self) -> Fallback:
        return Fallback.NONE if self._drafter is None else self._drafter.declined()

    @override
    def guess(self) -> Proposal:
        started = time.perf_counter()
        self._used, self._draft = self._guess()
        if self._used is not None:
            waited = time.perf_counter() - started
            return Proposal(self._draft, waited=waited, drafter=self._used.kind, local=True)
        if self._drafter is None:
            return Proposal(fallback=Fallback.NO_MATCH if self._asked else Fallback.NOT_WORTH_IT, local=True)
        return Proposal()

    @override
    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        guess = self.guess()
        self._own = guess if self._used is not None or self._drafter is None else None
        if self._own is None and self._drafter is not None:
            self._drafter.request(gamma, changed)

    @override
    def proposal(self) -> Proposal | None:
        return self._own if self._own is not None or self._drafter is None else self._drafter.proposal()

    @property
    @override
    def patience(self) -> float:
        return math.inf if self._own is not None or self._drafter is None else self._drafter.patience

    @override
    def stop_waiting(self) -> None:
        if self._drafter is not None:
            self._drafter.stop_waiting()

    @override
    def read(self, features: Features) -> None:
        if self._drafter is not None:
            self._drafter.read(features)

    @override
    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        self._unread += tokens
        self._room -= len(tokens)
        self._length += len(tokens)
        if not self._is_reading:
            self._read(len(self._unread))
        ours = min(judged, len(self._draft.tokens))  # tokens that a grammar forced after the draft do not count
        accepted = min(ours, common_length(self._draft.tokens, tokens))
        for each in self._sources:
            each.observe(ours if each is self._used else 0, accepted if each is self._used else 0)
        if self._drafter is not None:
            self._drafter.commit(tokens, judged if self._used is None else 0, gamma)

    @override
    def distrust(self) -> None:
        if self._used is not None:
            self._sources = [each for each in self._sources if each is not self._used]
        elif self._drafter is not None:
            self._drafter.distrust()

    @override
    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._drafter is not None:
            self._drafter.close()

    def _guess(self) -> tuple[LocalSource | None, Draft]:
        """Return the first source that has a draft, and the draft. No source drafts while the prompt is being read."""
        self._asked = self._is_reading
        for each in () if self._is_reading else self._sources:
            gamma = each.gamma.gamma()
            self._asked = self._asked or gamma > 0
            draft = each.draft(min(gamma, self._room - 1), self._length, self._mode)
            if draft.tokens:
                return each, draft
        return None, NO_DRAFT

    @property
    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def _read_all(self) -> None:
        """Read the prompt in pieces, and yield to the event loop before each piece."""
        while self._unread:
            await asyncio.sleep(0)
            self._read(_PIECE)

    def _read(self, count: int) -> None:
        piece, self._unread = self._unread[:count], self._unread[count:]
        for each in self._sources:
            each.source.read(piece)
