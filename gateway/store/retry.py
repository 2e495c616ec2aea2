"""Waits out a session store that is away."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from specdec.errors import SessionStoreDown

PAUSE = 0.2
"""Seconds between tries, beyond the store's own retries."""

_Answer = TypeVar("_Answer")


async def patiently(step: Callable[[], Awaitable[_Answer]], seconds: float) -> _Answer:
    """The outcome of `step`, tried again for `seconds` while the store does not answer.

    A step may have happened though its answer was lost: it must be one that may be repeated.

    Raises:
        SessionStoreDown: it stayed away.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + seconds
    while True:
        try:
            return await step()
        except SessionStoreDown:
            if loop.time() + PAUSE > give_up:
                raise
        await asyncio.sleep(PAUSE)
