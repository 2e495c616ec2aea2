"""Exclusion of a service's loaded objects from Python's garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Exclude all live objects from garbage collection inside the context. Use it after a process has loaded.

    Modules and models consist of many objects that live as long as the process. A full collection over them would pause
    every stream. The exclusion ends with the context, because libraries report objects left at exit on stderr.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
