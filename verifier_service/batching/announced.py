"""The rows that are announced: those of rounds that still wait for their drafts."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verifier_service.batching.batch_plan import Gathers

_TURNS = 4
"""Turns of the event loop within which a row comes that is told to hurry."""


class Announced:
    """Announced rows, by how the next pass waits for them."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Begin with none; `changed` is called when the next pass may begin at another time than before."""
        self._changed = changed
        self._counts = Counter[Gathers]()
        self._hurries: set[Callable[[], None]] = set()
        """Those of the rows for which the next pass does not wait."""
        self._longest = 0.0

    def __getitem__(self, gathers: Gathers) -> int:
        """How many rows are announced."""
        return self._counts[gathers]

    @contextmanager
    def row(self, gathers: Gathers, hurry: Callable[[], None]) -> Iterator[None]:
        """Announce a row that comes at the end of the context.

        Args:
            gathers: whether the next pass waits for it.
            hurry: lets the context end soon, where the next pass does not.
        """
        started = time.perf_counter()
        self._counts[gathers] += 1
        if gathers is Gathers.NOT:
            self._hurries.add(hurry)
            self._changed()
        try:
            yield
        finally:
            self._counts[gathers] -= 1
            self._hurries.discard(hurry)
            if gathers is not Gathers.NOT:
                self._longest = max(self._longest, time.perf_counter() - started)
            self._changed()

    async def hurry(self) -> None:
        """Let the rows come that the next pass does not wait for: it begins."""
        for _ in range(_TURNS):
            if not self._hurries:
                break
            for hurry in self._hurries:
                hurry()
            await asyncio.sleep(0)

    def waited(self) -> float:
        """Longest time, in seconds, that a row which came since this was asked last had been announced."""
        longest, self._longest = self._longest, 0.0
        return longest
