"""Slows down a turn that is lost again and again, and ends it: what contradicts itself must not be tried for ever."""

import asyncio
import random

from specdec.errors import SessionDiverged

MOST = 8
"""Setbacks in a row, with no token between them, after which a turn is given up."""
_FIRST = 0.05
"""Longest pause in seconds before the second try; it doubles with each further one."""
_LONGEST = 1.0
"""Longest pause of all, in seconds."""


class Setbacks:
    """Counts the setbacks of one turn."""

    def __init__(self) -> None:
        self._length = -1
        self._in_a_row = 0

    async def wait(self, length: int, why: str) -> None:
        """Note a setback, and wait before the next try: not after progress, longer and longer without.

        Args:
            length: of the turn, in tokens; more than at the setback before is progress.

        Raises:
            SessionDiverged: there were too many without progress.
        """
        self._in_a_row = 0 if length > self._length else self._in_a_row + 1
        self._length = length
        if self._in_a_row > MOST:
            raise SessionDiverged(f"the turn was lost {MOST} times in a row and came no further: {why}")
        if self._in_a_row:
            longest = min(_FIRST * 2.0**self._in_a_row, _LONGEST)
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))
