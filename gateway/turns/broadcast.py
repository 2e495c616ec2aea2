"""A generation that runs in this process, apart from its readers: they come, leave and come back while it goes on."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

import structlog

from gateway.tasks import cancel_and_wait
from gateway.turns.events import Event
from specdec.errors import Draining, SpecdecError

_log = structlog.get_logger()


class Broadcast:
    """One generation: its events so far, and how many readers it has.

    It stays at most one event ahead of its fastest reader, so that a slow client slows its verifier down; from its
    deadline, a `time.monotonic()`, on it waits for nobody, so that no client keeps it from ending. Without any reader
    it goes on for `grace` seconds; then it is stopped, and the session store keeps what it committed.
    """

    def __init__(
        self, events: AsyncGenerator[Event], grace: float, deadline: float, on_end: Callable[[], None]
    ) -> None:
        self._source = events
        self._grace = grace
        self._deadline = deadline
        self._on_end = on_end
        self._events: list[Event] = []
        self._error: Exception | None = None
        self._ended = False
        self._readers = 0
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, at every event and at the end."""
        self._wanted = asyncio.Event()
        """Set while a reader has read every event, or while there is no reader."""
        self._abandon_timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._produce())

    @property
    def is_read(self) -> bool:
        """Whether it has a reader now."""
        return self._readers > 0

    async def read(self) -> AsyncGenerator[Event]:
        """Every event from the first on; at the end, the error that the generation failed with is raised."""
        self._add_reader()
        seen = 0
        try:
            while True:
                while seen < len(self._events):
                    seen += 1
                    yield self._events[seen - 1]
                if self._ended:
                    break
                self._wanted.set()
                await self._changed.wait()
        finally:
            await self._remove_reader()
        if self._error is not None:
            raise self._error

    def expect_reader(self, seconds: float) -> None:
        """Stop the generation unless it has a reader within `seconds`, counted from now."""
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
        self._abandon_timer = asyncio.get_running_loop().call_later(seconds, self._abandon)

    def extend_grace(self) -> None:
        """Begin the grace anew where it runs, because a reader is on its way."""
        if self._abandon_timer is not None:
            self.expect_reader(self._grace)

    async def stop(self) -> None:
        """Stop the generation here; what is committed stays, and any gateway can resume it, also this one at once."""
        self._on_end()
        await cancel_and_wait(self._task)

    def _add_reader(self) -> None:
        self._readers += 1
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
            self._abandon_timer = None

    async def _remove_reader(self) -> None:
        self._readers -= 1
        if self._readers or self._ended:
            return
        self._wanted.set()
        if self._grace:
            self.expect_reader(self._grace)
        else:
            await self.stop()

    def _abandon(self) -> None:
        self._on_end()  # now: a reader that comes while this one is stopped begins the generation anew
        self._stopping = asyncio.create_task(self.stop())

    async def _produce(self) -> None:
        try:
            async with aclosing(self._source) as events:
                async for event in events:
                    self._wanted.clear()
                    self._events.append(event)
                    self._wake_readers()
                    if self._readers:
                        await self._until_wanted()
        except asyncio.CancelledError:
            self._error = Draining("the generation was stopped here: it can be resumed")
        except Exception as error:  # noqa: BLE001 - every reader gets it
            self._error = error
            if not isinstance(error, SpecdecError):
                _log.error("generation_failed", exc_info=error)
        finally:
            self._ended = True
            if self._abandon_timer is not None:
                self._abandon_timer.cancel()
            self._on_end()
            self._wake_readers()

    async def _until_wanted(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                await self._wanted.wait()

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Broadcasts:
    """The generations that run in this process, by their public ids."""

    def __init__(self) -> None:
        self._running: dict[str, Broadcast] = {}

    def get(self, name: str) -> Broadcast | None:
        """The generation of that name; None when it does not run here."""
        return self._running.get(name)

    def join(self, name: str) -> Broadcast | None:
        """As `get`, for a reader that is about to come: the generation is not stopped for want of readers meanwhile."""
        broadcast = self.get(name)
        if broadcast is not None:
            broadcast.extend_grace()
        return broadcast

    def start(self, name: str, events: AsyncGenerator[Event], grace: float, deadline: float = math.inf) -> Broadcast:
        """Run a generation that does not run here yet; without readers it goes on for `grace` seconds."""
        broadcast = Broadcast(events, grace, deadline, lambda: self._forget(name, broadcast))
        self._running[name] = broadcast
        return broadcast

    async def stop_unread(self) -> None:
        """Stop the generations that have no reader now."""
        await asyncio.gather(*(each.stop() for each in list(self._running.values()) if not each.is_read))

    async def close(self) -> None:
        """Stop all generations."""
        await asyncio.gather(*(each.stop() for each in list(self._running.values())))

    def _forget(self, name: str, broadcast: Broadcast) -> None:
        """Forget a generation that ends, unless another has begun in its place."""
        if self._running.get(name) is broadcast:
            del self._running[name]
