"""Streams that their callers do not read: each ends after a while, and gives back what it holds."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

UNREAD_SECONDS = 30.0
"""Seconds for which a caller may leave an event unread; then its call ends, and its work."""


@contextmanager
def read_in_time() -> Iterator[None]:
    """The handing over of one event, which ends the call where nobody takes it."""
    task = asyncio.current_task()
    timer = asyncio.get_running_loop().call_later(UNREAD_SECONDS, task.cancel) if task is not None else None
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
