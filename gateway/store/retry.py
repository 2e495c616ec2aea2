"""Retries what fails because the session store does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from specdec.errors import SessionStoreDown

PAUSE = 0.2
"""Seconds between two tries, in addition to the retries of the Redis client."""

_Answer = TypeVar("_Answer")


async def retry(step: Callable[[], Awaitable[_Answer]], seconds: float) -> _Answer:
    """The result of `step`, which is tried again for `seconds` while the store does not answer.

    The step must be safe to repeat: it may have been done although its answer was lost.

    Raises:
        SessionStoreDown: the store did not answer in time.
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
