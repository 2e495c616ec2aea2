"""Loaded objects are exempt from garbage collection while a service runs, and no longer."""

import gc
import weakref

from specdec.serving.heap import frozen_heap


class _Loop:
    """An object that refers to itself, so that only a collection can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_lives_before_is_left_out_of_collections_until_the_end() -> None:
    loaded = _Loop()
    seen = weakref.ref(loaded)
    with frozen_heap():
        del loaded
        gc.collect()
        assert seen() is not None
    gc.collect()
    assert seen() is None


def test_what_is_made_after_it_is_collected() -> None:
    with frozen_heap():
        made = _Loop()
        seen = weakref.ref(made)
        del made
        gc.collect()
        assert seen() is None
