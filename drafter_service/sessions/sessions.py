"""Every open session of every stream: takes the verifiers' messages, and keeps KV in step with what they say."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from drafter_service.drafters.base import Drafter, Work
from drafter_service.sessions.messages import Frame, Malformed, Message, Reason, Refused
from drafter_service.sessions.session import Session
from specdec.wire.session import Close, Commit, Open

_COLD_SECONDS = 2.0
"""Silence after which a session makes room for one that is opened."""


class Stream(Protocol):
    """One verifier's connection, as the worker sees it."""

    @property
    def number(self) -> int:
        """Different for every stream of this process."""

    @property
    def full(self) -> bool:
        """Whether its verifier is slow to read, so that nothing new should be made for it."""

    def deliver(self, frame: Frame) -> None:
        """Send; called on the worker's thread, never blocks."""


class Sessions:
    """The table of sessions; a name belongs to its stream, two verifiers may use the same one."""

    def __init__(self, drafter: Drafter, max_sessions: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._drafter = drafter
        self._max_sessions = max_sessions
        self._clock = clock
        self._streams: dict[Stream, dict[str, Session]] = {}
        self._dropped: list[tuple[Stream, Session]] = []

    def __len__(self) -> int:
        """Open sessions."""
        return sum(map(len, self._streams.values()))

    def __iter__(self) -> Iterator[tuple[Stream, Session]]:
        return ((stream, session) for stream, table in self._streams.items() for session in table.values())

    def take(self, stream: Stream, message: Message) -> Session | None:
        """Do what a message says.

        Returns:
            The session whose state it changed, if it is still there.

        Raises:
            Refused: it cannot be done. The session is forgotten then, unless the message was older than it.
        """
        try:
            session = self._take(stream, message)
        except Refused:
            known = self._find(stream, message.session_id)
            if known is not None and message.epoch >= known.epoch:
                self.forget(stream, known)
            raise
        if session is not None:
            session.heard = self._clock()
        return session

    def with_room(self, batch: Sequence[Work]) -> list[Work]:
        """The batch, without the sessions there is no memory for.

        One that grows takes it from the sessions that nobody waits for now, the longest unheard of first; where there
        are none of these it is dropped itself.
        """
        for work in batch:
            session = work.session
            while session.has_room and not self._drafter.reserve(
                session.key, self._drafter.length(session.key) + work.count
            ):
                coldest = self._coldest(sparing=session)
                self._drop(coldest or session)
        return [work for work in batch if work.session.has_room]

    def take_dropped(self) -> list[tuple[Stream, Session]]:
        """The sessions dropped for others since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def forget(self, stream: Stream, session: Session) -> None:
        """Drop a session and free its KV."""
        del self._streams[stream][session.session_id]
        if session.has_room:
            session.has_room = False
            self._drafter.release(session.key)

    def drop(self, stream: Stream, session_id: str) -> None:
        """Forget a session by name, if it is there."""
        session = self._find(stream, session_id)
        if session is not None:
            self.forget(stream, session)

    def end(self, stream: Stream) -> None:
        """Drop every session of a stream."""
        for session in list(self._streams.get(stream, {}).values()):
            self.forget(stream, session)
        self._streams.pop(stream, None)

    def _take(self, stream: Stream, message: Message) -> Session | None:
        match message:
            case Open():
                return self._open(stream, message)
            case Commit():
                return self._commit(stream, message)
            case Close():
                self._close(stream, message)
            case Malformed():
                raise Refused(Reason.MALFORMED, message.detail)
        return None

    def _open(self, stream: Stream, message: Open) -> Session:
        earlier = self._find(stream, message.session_id)
        if earlier is not None and message.epoch < earlier.epoch:
            raise Refused(Reason.STALE, f"epoch {message.epoch}, the session is at {earlier.epoch}")
        self._check_ids(message.tokens)
        self._check_ids([token for ids in message.params.named_ids.values() for token in ids])
        session = Session(f"{stream.number}/{message.session_id}", message, self._drafter.info.context_length)
        if earlier is None:
            self._make_room(session)
        else:
            self._take_over(stream, earlier, session)
        self._streams.setdefault(stream, {})[session.session_id] = session
        return session

    def _take_over(self, stream: Stream, earlier: Session, session: Session) -> None:
        """Keep the KV of a session that is opened again, as far as its tokens are the same."""
        if earlier.has_room and session.limit <= earlier.limit:
            session.has_room = True
            self._void(session, earlier.shared_with(session.since(0)))
            return
        self.forget(stream, earlier)
        self._make_room(session)

    def _make_room(self, session: Session) -> None:
        if len(self) >= self._max_sessions:
            raise Refused(Reason.OVERLOADED, f"{self._max_sessions} sessions are open")
        if len(session) >= session.limit:
            return
        tokens = session.since(0)
        fits = self._drafter.can_ever_admit(session.limit)
        while not (fits and self._drafter.admit(session.key, session.limit, tokens, session.domain)):
            coldest = self._coldest(silent=_COLD_SECONDS) if fits else None
            if coldest is None:
                raise Refused(Reason.OVERLOADED, f"no memory for a sequence of {session.limit} tokens")
            self._drop(coldest)
        session.has_room = True

    def _coldest(self, *, silent: float = 0.0, sparing: Session | None = None) -> Session | None:
        """The session longest unheard of, at least `silent` seconds, of those with room that nobody waits for."""
        before = self._clock() - silent
        cold = [
            session
            for _, session in self
            if session.has_room and session is not sparing and not session.urgent and session.heard <= before
        ]
        return min(cold, key=lambda session: session.heard, default=None)

    def _drop(self, session: Session) -> None:
        """Forget a session because another needs its room."""
        stream = next(stream for stream, each in self if each is session)
        self.forget(stream, session)
        self._dropped.append((stream, session))

    def _commit(self, stream: Stream, message: Commit) -> Session:
        session = self._find(stream, message.session_id)
        if session is None:
            raise Refused(Reason.UNKNOWN, "the session is not open")
        self._check_ids(message.tokens)
        standing = session.commit(message)
        self._void(session, standing)
        return session

    def _close(self, stream: Stream, message: Close) -> None:
        session = self._find(stream, message.session_id)
        if session is not None and message.epoch >= session.epoch:
            self.forget(stream, session)

    def _void(self, session: Session, standing: int) -> None:
        """Drop the KV behind the tokens that still stand; the last token of all gets its own with the next step."""
        if session.has_room:
            self._drafter.truncate(session.key, min(standing, len(session) - 1))

    def _find(self, stream: Stream, session_id: str) -> Session | None:
        return self._streams.get(stream, {}).get(session_id)

    def _check_ids(self, ids: Sequence[int]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self._drafter.info.vocab_size:
            raise Refused(Reason.MALFORMED, f"a token id is outside the vocabulary of {self._drafter.info.vocab_size}")
