"""How far a generation may go before its reader has taken what there is."""

import asyncio
import math


class Credit:
    """The sequence length that a generation may reach; without an argument, any length."""

    def __init__(self, length: float = math.inf) -> None:
        self._length = length
        self._granted = asyncio.Event()

    def allows(self, length: int) -> bool:
        """Whether a round may begin behind so many committed tokens."""
        return length < self._length

    def grant(self, length: int) -> None:
        """Set the length that may be reached."""
        self._length = length
        self._granted.set()

    async def wait(self, length: int) -> None:
        """Wait until a round may begin behind so many committed tokens."""
        while not self.allows(length):
            self._granted.clear()
            await self._granted.wait()
