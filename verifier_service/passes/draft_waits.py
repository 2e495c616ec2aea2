"""Sequences whose next round waits for its draft, and how the next pass treats them."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from verifier_service.backends.batch_plan import Gathers
from verifier_service.drafts.drafts import Drafts, Proposal


class Drafting(Protocol):
    """Interface of a sequence that waits for drafts."""

    drafts: Drafts

    def drafted(self, proposal: Proposal) -> None:
        """Request the round with this draft."""

    def guarded(self, step: Callable[..., None], *arguments: object) -> None:
        """Run a step; an error ends only this sequence."""


class DraftWaits:
    """Waits of sequences for drafts. All methods run on the event loop.

    One callback for each event-loop iteration checks the waits whose drafts have changed. One timer checks the waits
    that have timed out.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Create an empty set; `changed` is called when the start time of the next pass may have changed."""
        self._changed = changed
        self._waits: dict[Drafting, tuple[Gathers, float]] = {}
        """Policy and start time of each wait."""
        self._counts = Counter[Gathers]()
        self._longest = 0.0
        self._stirred: dict[Drafting, None] = {}
        """Sequences whose drafts have changed since the last check."""
        self._check: tuple[asyncio.Handle, float] | None = None
        """Next scheduled check of waits that have timed out, and its time on the loop's clock."""

    def __getitem__(self, gathers: Gathers) -> int:
        """Return the number of waits with this policy."""
        return self._counts[gathers]

    def begin(self, sequence: Drafting, gamma: int) -> None:
        """Request a draft of γ tokens for a sequence, which requests its round with the draft after the wait."""
        gathers, began = sequence.drafts.gathers, time.perf_counter()
        sequence.drafts.request(gamma, lambda: self._stir(sequence))
        if (proposal := sequence.drafts.proposal()) is not None:
            sequence.drafted(proposal)
            return
        self._waits[sequence] = gathers, began
        self._counts[gathers] += 1
        if gathers is Gathers.NOT:
            self._changed()
        self._watch(sequence.drafts.patience)

    def drop(self, sequence: Drafting) -> None:
        """End the wait of a sequence without a draft, if it waits."""
        if (wait := self._waits.pop(sequence, None)) is None:
            return
        gathers, began = wait
        self._counts[gathers] -= 1
        if gathers is not Gathers.NOT:
            self._longest = max(self._longest, time.perf_counter() - began)
        self._changed()

    def stop_waiting(self) -> None:
        """End the waits that the next pass does not wait for. Called when the pass begins."""
        if not self._counts[Gathers.NOT]:
            return
        for sequence in [each for each, (gathers, _) in self._waits.items() if gathers is Gathers.NOT]:
            sequence.drafts.stop_waiting()
            self._look(sequence)

    def waited(self) -> float:
        """Return the longest wait that passes waited for and that ended since the last call, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest

    def _stir(self, sequence: Drafting) -> None:
        """Schedule a check of a sequence whose drafts have changed."""
        if sequence in self._waits:
            if not self._stirred:
                asyncio.get_running_loop().call_soon(self._look_at_stirred)
            self._stirred[sequence] = None

    def _look_at_stirred(self) -> None:
        stirred, self._stirred = self._stirred, {}
        for sequence in stirred:
            self._look(sequence)

    def _look(self, sequence: Drafting) -> None:
        """End the wait of a sequence if it is over."""
        if sequence in self._waits:
            sequence.guarded(self._take, sequence)

    def _take(self, sequence: Drafting) -> None:
        if (proposal := sequence.drafts.proposal()) is not None:
            self.drop(sequence)
            sequence.drafted(proposal)

    def _watch(self, patience: float) -> None:
        """Check the waits after `patience` seconds, unless an earlier check is scheduled."""
        if patience == math.inf:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + patience
        if self._check is not None:
            scheduled, when = self._check
            if when <= due:
                return
            scheduled.cancel()
        self._check = loop.call_at(due, self._look_at_late), due

    def _look_at_late(self) -> None:
        self._check = None
        for sequence in [each for each in self._waits if each.drafts.patience <= 0.0]:
            self._look(sequence)
        self._watch(min((each.drafts.patience for each in self._waits), default=math.inf))
