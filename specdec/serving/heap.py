"""Memory of a service: collects garbage rarely, and returns unused memory to the system."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL

EVERY = 10.0
"""Seconds between two returns of memory."""
_YOUNG = 10_000
"""Net number of new objects that starts a garbage collection. A pass over hundreds of sessions makes thousands of
objects that do not need one. With Python's 700, collections took a tenth of the processor time of 256 streams."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely inside the context, and never among the objects that live now.

    Use it after a process has loaded. Modules and models consist of many objects that live as long as the process, and
    a full collection over them would pause every stream. The settings end with the context, because libraries report
    objects left at exit on stderr.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def return_memory() -> None:
    """Return unused memory of the C library to the system every EVERY seconds, on a thread; without glibc, end.

    The library itself returns only the end of its heap, so that one small object keeps what large requests took.
    """
    trim = getattr(CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(EVERY)
        await asyncio.to_thread(trim, 0)
