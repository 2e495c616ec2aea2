"""A generation that runs in this process, apart from its readers: they come, leave and come back while it goes on."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from gateway.tasks import cancel_and_wait
from gateway.turns.events import Event, OutputRound
from specdec.errors import Draining, SpecdecError

_log = structlog.get_logger()


class Generated(Protocol):
    """What generates the events of a broadcast."""

    async def run(self, publish: Callable[[Event], None]) -> None:
        """Publish the events from the first to the last; when cancelled, stop as it stands."""

    def reader_is_at(self, read: int | None) -> None:
        """Note how many output tokens the fastest reader has taken; None while there is no reader to wait for."""


@dataclass(slots=True, eq=False)
class _Reader:
    """One reader of a broadcast."""

    taken: int = 0
    """Events that it is done with."""


class Broadcast:
    """One generation: its events so far, and its readers.

    The generation is told how far its fastest reader is, so that a slow client slows its verifier down. Without any
    reader it goes on for `grace` seconds; then it is stopped, and the session store keeps what it committed.
    """

    def __init__(self, source: Generated, grace: float, on_end: Callable[[], None]) -> None:
        self._source = source
        self._grace = grace
        self._on_end = on_end
        self._events: list[Event] = []
        self._error: Exception | None = None
        self._ended = False
        self._readers: set[_Reader] = set()
        self._changed = asyncio.Event()
        """Set at every event and at the end; a reader that has everything clears it and waits."""
        self._abandon_timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._generate())

    @property
    def is_read(self) -> bool:
        """Whether it has a reader now."""
        return bool(self._readers)

    async def read(self) -> AsyncGenerator[Event]:
        """Every event from the first on; at the end, the error that the generation failed with is raised."""
        reader = self._add_reader()
        try:
            while True:
                while reader.taken < len(self._events):
                    yield self._events[reader.taken]
                    reader.taken += 1
                    self._tell_source(reader)
                if self._ended:
                    break
                self._changed.clear()
                await self._changed.wait()
        finally:
            await self._remove_reader(reader)
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

    def _add_reader(self) -> _Reader:
        reader = _Reader()
        self._readers.add(reader)
        if len(self._readers) == 1:
            self._source.reader_is_at(0)
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
            self._abandon_timer = None
        return reader

    def _tell_source(self, reader: _Reader) -> None:
        """Tell the source how far the reader is, if it is the fastest."""
        event = self._events[reader.taken - 1]
        if isinstance(event, OutputRound) and all(reader.taken >= other.taken for other in self._readers):
            self._source.reader_is_at(event.committed)

    async def _remove_reader(self, reader: _Reader) -> None:
        self._readers.remove(reader)
        if self._readers or self._ended:
            return
        if self._grace:
            self._source.reader_is_at(None)
            self.expect_reader(self._grace)
        else:
            await self.stop()

    def _abandon(self) -> None:
        self._on_end()  # now: a reader that comes while this one is stopped begins the generation anew
        self._stopping = asyncio.create_task(self.stop())

    def _publish(self, event: Event) -> None:
        self._events.append(event)
        self._changed.set()

    async def _generate(self) -> None:
        try:
            await self._source.run(self._publish)
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
            self._changed.set()


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

    def start(self, name: str, source: Generated, grace: float) -> Broadcast:
        """Run a generation that does not run here yet; without readers it goes on for `grace` seconds."""
        broadcast = Broadcast(source, grace, lambda: self._forget(name, broadcast))
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
