"""Messages on their way to one verifier: put in from any thread, taken out on the event loop, bounded in bytes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SendQueue(Generic[T]):
    """A queue whose `put` never blocks; while it is `full`, nothing more should be made for it."""

    def __init__(self, limit_bytes: int, on_room: Callable[[], None]) -> None:
        """Belong to the running event loop.

        Args:
            limit_bytes: the queue is full while more than this waits.
            on_room: called on the loop when a full queue has room again.
        """
        self._loop = asyncio.get_running_loop()
        self._limit = limit_bytes
        self._on_room = on_room
        self._lock = threading.Lock()
        self._waiting: asyncio.Queue[tuple[T, int] | None] = asyncio.Queue()
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self._error: Exception | None = None

    @property
    def full(self) -> bool:
        return self._bytes > self._limit

    def put(self, message: T, size: int) -> None:
        """Add a message of `size` bytes; from any thread."""
        with self._lock:
            self._bytes += size
        self._loop.call_soon_threadsafe(self._add, message, size)

    def close(self, error: Exception | None = None) -> None:
        """End the iteration after what waits, by raising `error` when there is one; on the loop."""
        if not self._closed:
            self._closed, self._error = True, error
            self._loop.call_soon(self._waiting.put_nowait, None)  # behind what was put before

    async def room(self) -> None:
        await self._room.wait()

    async def __aiter__(self) -> AsyncIterator[T]:
        while (waiting := await self._waiting.get()) is not None:
            message, size = waiting
            self._remove(size)
            yield message
        if self._error is not None:
            raise self._error

    def _add(self, message: T, size: int) -> None:
        self._waiting.put_nowait((message, size))
        if self.full:
            self._room.clear()

    def _remove(self, size: int) -> None:
        with self._lock:
            was_full = self.full
            self._bytes -= size
        if was_full and not self.full:
            self._room.set()
            self._on_room()
