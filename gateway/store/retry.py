"""Retries operations that fail because the session store does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from specdec.errors import SessionStoreDown

PAUSE = 0.2
"""Seconds between two attempts, in addition to the retries of the Redis client."""
ONE_TRY = 5.0
"""Least overall timeout, in seconds, so that the first attempt can complete."""

_Answer = TypeVar("_Answer")


async def retry(step: Callable[[], Awaitable[_Answer]], seconds: float) -> _Answer:
    """Return the result of `step`; retry it for `seconds` while the store does not answer, then cancel it.

    The step must be safe to repeat: it may have succeeded although its answer was lost.

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
