"""Keeps what a service has loaded out of Python's garbage collections."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leave all objects that live now out of collections; for a process that has loaded what it needs, until it ends.

    Modules and models are a hundred thousand objects and more, which live as long as the process. A collection that
    walks through all of them stops every stream for a tenth of a second. A process that ends collects them again,
    because libraries report on stderr what is left of them then.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
