"""Retries what fails because the session store does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from specdec.errors import SessionStoreDown

PAUSE = 0.2
"""Seconds between two tries, in addition to the retries of the Redis client."""
ONE_TRY = 5.0
"""Seconds that the first try may take, however short the time for all of them is."""

_Answer = TypeVar("_Answer")


async def retry(step: Callable[[], Awaitable[_Answer]], seconds: float) -> _Answer:
    """The result of `step`, which is tried again for `seconds` while the store does not answer; then it is cancelled.

    The step must be safe to repeat: it may have been done although its answer was lost.

    Raises:
        SessionStoreDown: the store did not answer in time.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout_at(began + max(seconds, ONE_TRY)):
            while True:
                try:
                    return await step()
                except SessionStoreDown:
                    if loop.time() + PAUSE > began + seconds:
                        raise
                await asyncio.sleep(PAUSE)
    except TimeoutError as error:
        message = f"the session store did not answer within {loop.time() - began:.0f} s"
        raise SessionStoreDown(message) from error
