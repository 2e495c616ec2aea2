"""A generation that runs here, apart from those who read it: they come, leave and come back, and it goes on."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import structlog

from gateway.tasks import end
from gateway.turns.events import Event
from specdec.errors import Draining, SpecdecError

_log = structlog.get_logger()


class Broadcast:
    """One generation: its events so far, and who reads them.

    It stays one event ahead of its fastest reader at most, so that a slow client slows its verifier down. Without any
    reader it goes on by itself, for `grace` seconds: then it is stopped where it stands, and the store has it.
    """

    def __init__(self, events: AsyncGenerator[Event], grace: float, ended: Callable[[], None]) -> None:
        self._source = events
        self._grace = grace
        self._on_end = ended
        self._events: list[Event] = []
        self._error: Exception | None = None
        self._ended = False
        self._readers = 0
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._leaving: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._produce())

    @property
    def is_read(self) -> bool:
        """Whether anyone reads it now."""
        return self._readers > 0

    async def read(self) -> AsyncGenerator[Event]:
        """Every event from the first, then the error if it came to one."""
        self._come()
        seen = 0
        try:
            while True:
                while seen < len(self._events):
                    seen += 1
                    yield self._events[seen - 1]
                if self._ended:
                    break
                self._wanted.set()
                await self._news.wait()
        finally:
            await self._leave()
        if self._error is not None:
            raise self._error

    def expect_reader(self, seconds: float) -> None:
        """Stop it, unless someone comes to read it within `seconds`."""
        self._leaving = asyncio.get_running_loop().call_later(seconds, self._abandon)

    async def stop(self) -> None:
        """End it here, where it stands; it can go on elsewhere."""
        await end(self._task)

    def _come(self) -> None:
        self._readers += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    async def _leave(self) -> None:
        self._readers -= 1
        if self._readers or self._ended:
            return
        self._wanted.set()
        if self._grace:
            self.expect_reader(self._grace)
        else:
            await self.stop()

    def _abandon(self) -> None:
        self._ending = asyncio.create_task(self.stop())

    async def _produce(self) -> None:
        try:
            async with aclosing(self._source) as events:
                async for event in events:
                    self._wanted.clear()
                    self._events.append(event)
                    self._tell()
                    if self._readers:
                        await self._wanted.wait()
        except asyncio.CancelledError:
            self._error = Draining("the generation was stopped here: it can be resumed")
        except Exception as error:  # noqa: BLE001 - told to whoever reads
            self._error = error
            if not isinstance(error, SpecdecError):
                _log.error("generation_failed", exc_info=error)
        finally:
            self._ended = True
            if self._leaving is not None:
                self._leaving.cancel()
            self._on_end()
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Broadcasts:
    """The generations that run here, by name."""

    def __init__(self) -> None:
        self._running: dict[str, Broadcast] = {}

    def get(self, name: str) -> Broadcast | None:
        """The one of that name, if it runs here."""
        return self._running.get(name)

    def start(self, name: str, events: AsyncGenerator[Event], grace: float) -> Broadcast:
        """Run one that does not run here yet."""
        live = Broadcast(events, grace, lambda: self._forget(name))
        self._running[name] = live
        return live

    async def stop_unread(self) -> None:
        """Stop those that nobody reads now, where they stand."""
        await asyncio.gather(*(live.stop() for live in list(self._running.values()) if not live.is_read))

    async def close(self) -> None:
        """Stop all of them where they stand."""
        await asyncio.gather(*(live.stop() for live in list(self._running.values())))

    def _forget(self, name: str) -> None:
        self._running.pop(name, None)
