"""Timeout of streams that their callers do not read, which releases their resources."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

UNREAD_SECONDS = 30.0
"""Seconds that a caller may leave an event unread before its call and its work end."""


@contextmanager
def read_in_time() -> Iterator[None]:
    """Send one event inside the context; cancel the call if the caller does not read it in time."""
    task = asyncio.current_task()
    timer = asyncio.get_running_loop().call_later(UNREAD_SECONDS, task.cancel) if task is not None else None
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
