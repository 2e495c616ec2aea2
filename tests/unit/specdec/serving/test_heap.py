"""Loaded objects are exempt from garbage collection while a service runs, and unused memory goes to the system."""

import asyncio
import gc
import os
import weakref
from contextlib import suppress
from ctypes import CDLL, c_size_t, c_void_p, memset
from pathlib import Path

import pytest

from specdec.serving import heap
from specdec.serving.heap import rare_collections
from tests.support.gateway_fakes import until

PIECE, PIECES = 64 * 1024, 1000


class _Loop:
    """An object that refers to itself, so that only a collection can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_lives_before_is_left_out_of_collections_until_the_end() -> None:
    loaded = _Loop()
    seen = weakref.ref(loaded)
    with rare_collections():
        del loaded
        gc.collect()
        assert seen() is not None
    gc.collect()
    assert seen() is None


def test_what_is_made_after_it_is_collected() -> None:
    with rare_collections():
        made = _Loop()
        seen = weakref.ref(made)
        del made
        gc.collect()
        assert seen() is None


def test_collections_of_new_objects_are_rare_until_the_end() -> None:
    found = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        usual = _collections_for(3000)
        with rare_collections():
            rare = _collections_for(3000)
        assert (usual > 2, rare, gc.get_threshold()) == (True, 0, (700, 10, 10))
    finally:
        gc.set_threshold(*found)


def _collections_for(count: int) -> int:
    """Make that many objects; return the number of collections meanwhile."""
    gc.collect()
    began = gc.get_stats()[0]["collections"]
    made = [[number] for number in range(count)]
    assert len(made) == count
    return int(gc.get_stats()[0]["collections"]) - began


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_memory_below_a_live_object_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    library = CDLL(None)
    library.malloc.restype, library.malloc.argtypes = c_void_p, [c_size_t]
    library.free.restype, library.free.argtypes = None, [c_void_p]
    pieces = [library.malloc(PIECE) for _ in range(PIECES)]
    for piece in pieces:
        memset(piece, 1, PIECE)
    full = resident()
    for piece in pieces[:-1]:
        library.free(piece)
    assert resident() > full - PIECE * PIECES // 2, "the library keeps it"
    monkeypatch.setattr(heap, "EVERY", 0.01)
    returning = asyncio.create_task(heap.return_memory())
    await until(lambda: resident() < full - PIECE * PIECES // 2)
    returning.cancel()
    with suppress(asyncio.CancelledError):
        await returning
    library.free(pieces[-1])
