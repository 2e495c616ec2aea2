"""Keeps what a service has loaded out of Python's garbage collections."""

import gc


def freeze_heap() -> None:
    """Leave all objects that live now out of later collections; for a process that has loaded what it needs.

    Modules and models are a hundred thousand objects and more, which live as long as the process. A collection that
    walks through all of them stops every stream for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
