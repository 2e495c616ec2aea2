"""Generations of this process: broadcasts, whose readers may leave and return, and leases in the session store.

One task renews all leases, and one stream receives all cancellations.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from gateway.store.sessions import SessionStore
from gateway.tasks import cancel_and_wait
from gateway.turns.events import Event, OutputRound, joined_rounds
from specdec.errors import Draining, SessionStoreDown, SpecdecError

_IN_A_ROW = 32
"""Most events that a reader takes before it yields to the event loop."""
_log = structlog.get_logger()


class Generated(Protocol):
    """Source of a broadcast's events."""

    async def run(self, publish: Callable[[Event], None]) -> None:
        """Publish all events in order. Cancellation stops the generation and keeps its committed rounds."""

    def reader_is_at(self, read: int | None, *, at_end: bool = False) -> None:
        """Set the number of output tokens that the fastest reader has taken; None without a reader to wait for.

        `at_end` is whether there are readers and all take the rounds at the end.
        """


@dataclass(slots=True, eq=False)
class _Reader:
    """One reader of a broadcast."""

    taken: int = 0
    """Number of events that the reader has handled."""


class Broadcast:
    """One generation with its events so far and its readers.

    The broadcast reports the fastest reader's position to the source, so a slow client slows its verifier down.
    Without readers the generation continues for `grace` seconds and then stops; committed rounds stay in the store.
    """

    def __init__(self, source: Generated, grace: float, on_end: Callable[["Broadcast"], None]) -> None:
        self._source = source
        self._grace = grace
        self._on_end = on_end
        self._events: list[Event] = []
        self._error: Exception | None = None
        self._ended = False
        self._readers: set[_Reader] = set()
        self._at_end = 0
        """Number of readers that take all rounds at the end. They count as having read every published round."""
        self._changed = asyncio.Event()
        """Set at every event and at the end. A reader that has every event clears it and waits."""
        self._over = asyncio.Event()
        self._abandon_timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._generate())

    @property
    def is_read(self) -> bool:
        """Whether the broadcast has a reader."""
        return bool(self._readers)

    async def read(self) -> AsyncGenerator[Event]:
        """Yield every event from the first on; if the generation failed, raise its error at the end."""
        reader = self._add_reader(at_end=False)
        try:
            while True:
                while reader.taken < len(self._events):
                    yield self._events[reader.taken]
                    reader.taken += 1
                    self._tell_source(reader)
                    if reader.taken % _IN_A_ROW == 0:
                        await asyncio.sleep(0)
                if self._ended:
                    break
                self._changed.clear()
                await self._changed.wait()
        finally:
            await self._remove_reader(reader)
        if self._error is not None:
            raise self._error

    async def read_at_end(self) -> AsyncGenerator[Event]:
        """Yield Started at once and the rest, with rounds joined, when the generation has ended or failed.

        For flow control, such a reader counts as one that takes each round when it is published."""
        reader = self._add_reader(at_end=True)
        try:
            while not (self._events or self._ended):
                self._changed.clear()
                await self._changed.wait()
            for event in self._events[:1]:
                yield event
            await self._over.wait()
            for start in range(1, len(self._events), _IN_A_ROW):
                if start > 1:
                    await asyncio.sleep(0)
                for event in joined_rounds(self._events[start : start + _IN_A_ROW]):
                    yield event
        finally:
            self._at_end -= 1
            await self._remove_reader(reader)
        if self._error is not None:
            raise self._error

    def expect_reader(self, seconds: float) -> None:
        """Stop the generation unless a reader arrives within `seconds`."""
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
        self._abandon_timer = asyncio.get_running_loop().call_later(seconds, self._abandon)

    def extend_grace(self) -> None:
        """Restart a running grace period, because a reader is about to arrive."""
        if self._abandon_timer is not None:
            self.expect_reader(self._grace)

    async def stop(self) -> None:
        """Stop the generation here. Its committed rounds stay, and any gateway, including this one, can resume it."""
        self._on_end(self)
        await cancel_and_wait(self._task)

    def _add_reader(self, *, at_end: bool) -> _Reader:
        reader = _Reader()
        self._readers.add(reader)
        self._at_end += at_end
        if self._at_end:
            rounds = (event.committed for event in self._events if isinstance(event, OutputRound))
            self._tell_all_read(max(rounds, default=0))
        elif len(self._readers) == 1:
            self._source.reader_is_at(0)
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
            self._abandon_timer = None
        return reader

    def _tell_source(self, reader: _Reader) -> None:
        """Report the reader's position to the source, if it is the fastest reader."""
        event = self._events[reader.taken - 1]
        if self._at_end or not isinstance(event, OutputRound):
            return
        if all(reader.taken >= other.taken for other in self._readers):
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
        self._on_end(self)  # before the stop, so that a reader that arrives during it starts a new broadcast
        self._stopping = asyncio.create_task(self.stop())

    def _publish(self, event: Event) -> None:
        self._events.append(event)
        self._changed.set()
        if self._at_end and isinstance(event, OutputRound):
            self._tell_all_read(event.committed)

    def _tell_all_read(self, committed: int) -> None:
        """Report that readers at the end have all rounds, and whether there are no others."""
        self._source.reader_is_at(committed, at_end=self._at_end == len(self._readers))

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
            self._on_end(self)
            self._changed.set()
            self._over.set()


class Broadcasts:
    """Generations that run in this process, by public id."""

    def __init__(self) -> None:
        self._running: dict[str, Broadcast] = {}

    def get(self, name: str) -> Broadcast | None:
        """Return the generation with this id; None if it does not run here."""
        return self._running.get(name)

    def join(self, name: str) -> Broadcast | None:
        """Like `get`, for a reader that is about to arrive; restarts a running grace period."""
        broadcast = self.get(name)
        if broadcast is not None:
            broadcast.extend_grace()
        return broadcast

    def start(self, name: str, source: Generated, grace: float) -> Broadcast:
        """Start a generation that does not run here yet; without readers it continues for `grace` seconds."""
        broadcast = self._running[name] = Broadcast(source, grace, partial(self._forget, name))
        return broadcast

    async def stop_unread(self) -> None:
        """Stop the generations without a reader."""
        await asyncio.gather(*(each.stop() for each in list(self._running.values()) if not each.is_read))

    async def close(self) -> None:
        """Stop all generations."""
        await asyncio.gather(*(each.stop() for each in list(self._running.values())))

    def _forget(self, name: str, broadcast: Broadcast) -> None:
        """Remove an ended generation, unless another has replaced it."""
        if self._running.get(name) is broadcast:
            del self._running[name]


class Owned(Protocol):
    """Session that this gateway owns or is about to acquire."""

    session_id: str
    turn: int
    epoch: int
    """Fencing number of the ownership; 0 before it is acquired."""

    def cancel(self) -> None:
        """Handle the caller's cancellation of the turn."""


class Leases:
    """Renews leases and receives cancellations while sessions are held, and until none was for a third of a lease."""

    def __init__(self, sessions: SessionStore, owner: str, lease: float) -> None:
        """Manage the leases of `owner`, which last `lease` seconds and are renewed every third of that."""
        self._sessions = sessions
        self._owner = owner
        self._every = lease / 3
        self._held: dict[str, Owned] = {}
        """Owned sessions by session id."""
        self._keeping: asyncio.Task[None] | None = None

    @contextmanager
    def held(self, session: Owned) -> Iterator[None]:
        """Renew the session's lease inside the context, and call its `cancel` when its turn is cancelled."""
        self._held[session.session_id] = session
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            if self._held.get(session.session_id) is session:
                del self._held[session.session_id]

    async def close(self) -> None:
        """Renew and receive no more."""
        if self._keeping is not None:
            await cancel_and_wait(self._keeping)

    async def _keep(self) -> None:
        """Renew and receive until no session is held. Its end may take long; the next such task can start before it."""
        hearing = asyncio.create_task(self._hear())
        try:
            while True:
                await asyncio.sleep(self._every)
                if not self._held:
                    break
                await self._renew()
        finally:
            self._keeping = None
            await cancel_and_wait(hearing)

    async def _renew(self) -> None:
        """Renew all leases. The next commit of a fenced session detects the fence."""
        owned = [each for each in self._held.values() if each.epoch]
        with suppress(SessionStoreDown):
            answers = await self._sessions.renew([(each.session_id, each.epoch) for each in owned])
            for each, answer in zip(owned, answers, strict=True):
                if answer is True:
                    each.cancel()

    async def _hear(self) -> None:
        """Receive cancellations as they happen. The next renewal or commit detects a missed one."""
        async for session_id, turn in self._sessions.cancellations(self._owner):
            held = self._held.get(session_id)
            if held is not None and held.turn == turn:
                held.cancel()
