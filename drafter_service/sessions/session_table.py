"""The table of open sessions: applies the verifiers' messages, and evicts sessions when memory runs out."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from drafter_service.config import DrafterSettings
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import Drafter, FeatureReader, ScheduledSession
from drafter_service.sessions.outcomes import Outcomes, OutcomeSession
from drafter_service.sessions.refusal import SessionRefused
from drafter_service.sessions.stream import MalformedMessage, Message, Stream
from drafter_service.sessions.tree_session import TreeSession
from specdec.engine.protocol import PromptReader
from specdec.rules.prefix import common_length
from specdec.wire.features import Features
from specdec.wire.session import Close, Commit, NackReason, Open

Owned = Collection[tuple[str, DraftSession]]
"""Sessions, each with its verifier."""
_IDLE_SECONDS = 2.0
"""Idle time, in seconds, after which a session may be evicted for a new one."""


class SessionTable:
    """Sessions by stream and name. Two verifiers may use the same name for different sessions."""

    def __init__(
        self, drafter: Drafter, settings: DrafterSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._info = drafter.info
        self._sequences = drafter.sequences
        self.outcomes = Outcomes(drafter.sequences, settings.outcomes)
        """Outcomes prepared for the pending verdicts."""
        self._settings = settings
        self._clock = clock
        self._streams: dict[Stream, dict[str, DraftSession]] = {}
        self._evicted: list[tuple[Stream, DraftSession]] = []

    def __len__(self) -> int:
        """Return the number of open sessions."""
        return sum(map(len, self._streams.values()))

    def __iter__(self) -> Iterator[tuple[Stream, DraftSession]]:
        return ((stream, session) for stream, sessions in self._streams.items() for session in sessions.values())

    def take(self, stream: Stream, message: Message) -> DraftSession | None:
        """Apply a message.

        Returns:
            Session that was opened or continued; None after a Close.

        Raises:
            SessionRefused: the message cannot be applied.
            Exception: the drafter failed. On either error the session is removed, unless the message has an older
                epoch.
        """
        try:
            session = self._take(stream, message)
        except Exception:
            known = self._find(stream, message.session_id)
            if known is not None and message.epoch >= known.epoch:
                self.remove(stream, known)
            raise
        if session is not None:
            session.last_message = self._clock()
        return session

    def reserve(self, batch: Sequence[ScheduledSession]) -> list[ScheduledSession]:
        """Reserve memory for a step. Return the batch without the sessions for which there is none.

        A session that grows evicts a session of the verifier that holds most, if its own verifier holds less. Otherwise
        it evicts the least recently used session that no verifier waits for. If there is none, it is evicted itself.
        """
        for scheduled in batch:
            session = scheduled.session
            more = scheduled.count + session.branches
            while session.admitted and not self._sequences.reserve(
                session.key, self._sequences.length(session.key) + more
            ):
                if isinstance(session, OutcomeSession):
                    self.outcomes.drop(session)
                elif not self.outcomes.give_back():
                    self._evict(self._room_for(session, more) or session)
        return [scheduled for scheduled in batch if scheduled.session.admitted]

    def take_evicted(self) -> list[tuple[Stream, DraftSession]]:
        """Return the sessions evicted since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def remove(self, stream: Stream, session: DraftSession) -> None:
        """Remove a session and free its memory."""
        self.outcomes.forget(session)
        del self._streams[stream][session.session_id]
        if session.admitted:
            session.admitted = False
            self._sequences.release(session.key)

    def remove_stream(self, stream: Stream) -> None:
        """Remove every session of a stream."""
        for session in list(self._streams.get(stream, {}).values()):
            self.remove(stream, session)
        self._streams.pop(stream, None)

    def _take(self, stream: Stream, message: Message) -> DraftSession | None:
        match message:
            case Open():
                return self._open(stream, message)
            case Commit():
                return self._commit(stream, message)
            case Close():
                self._close(stream, message)
            case MalformedMessage():
                raise SessionRefused(NackReason.MALFORMED, message.detail)
        return None

    def _open(self, stream: Stream, message: Open) -> DraftSession:
        earlier = self._find(stream, message.session_id)
        if earlier is not None and message.epoch < earlier.epoch:
            raise SessionRefused(NackReason.STALE, f"epoch {message.epoch}, the session is at {earlier.epoch}")
        self._check_ids(message.tokens)
        self._check_ids([token for ids in message.params.named_ids.values() for token in ids])
        key, context = f"{stream.number}/{message.session_id}", self._info.context_length
        plan = message.tree
        session = DraftSession(key, message, context) if plan is None else TreeSession(key, message, plan, context)
        if earlier is None:
            self._make_room(stream)
            self._admit(stream, session)
        else:
            self._replace(stream, earlier, session)
        self._streams.setdefault(stream, {})[session.session_id] = session
        self._read_features(session, message.features, opened=True)
        return session

    def _read_features(self, session: DraftSession, features: Features | None, *, opened: bool) -> None:
        """Pass features on to a drafter that reads them."""
        if session.admitted and isinstance(self._sequences, FeatureReader):
            self._sequences.read_features(session, features, opened=opened)

    def _replace(self, stream: Stream, earlier: DraftSession, session: DraftSession) -> None:
        """Reopen a session, and keep the computed state of the common prefix."""
        self.outcomes.forget(earlier)
        if earlier.admitted and session.limit <= earlier.limit:
            session.admitted = True
            self._read_prompt(session)
            self._truncate(session, common_length(earlier.tokens_from(0), session.tokens_from(0)))
            return
        self.remove(stream, earlier)
        self._admit(stream, session)

    def _make_room(self, stream: Stream) -> None:
        """Make room for one more session of a verifier. At its session limit, the verifier loses an idle session.

        Without this eviction, sessions of a stream that broke silently would count until the drafter detects its end.
        At the limit of all sessions, the verifier with the most sessions gives one up to a verifier with fewer.

        Raises:
            SessionRefused: no session can be evicted.
        """
        verifier, most = stream.verifier_id, self._settings.max_sessions_per_verifier
        own = [session for owner, session in self._owned() if owner == verifier]
        if len(own) < most:
            if len(self) >= self._settings.max_sessions:
                given = owed(self._owned(), verifier, 1, size=lambda _: 1)
                if given is None:
                    raise SessionRefused(NackReason.OVERLOADED, f"{self._settings.max_sessions} sessions are open")
                self._evict(given)
            return
        idle = least_recent(own, self._clock() - _IDLE_SECONDS)
        if idle is None:
            detail = f"the verifier has {most} sessions open, as many as one may have"
            raise SessionRefused(NackReason.OVERLOADED, detail)
        self._evict(idle)

    def _admit(self, stream: Stream, session: DraftSession) -> None:
        """Admit a session, unless it is already too long to draft for. Idle sessions are evicted for it."""
        if len(session) >= session.limit:
            return
        tokens = session.tokens_from(0)
        fits = self._sequences.can_ever_admit(session.limit)
        while not (fits and self._sequences.admit(session.key, session.limit, tokens, session.domain)):
            if fits and self.outcomes.give_back():
                continue
            before = self._clock() - _IDLE_SECONDS
            going = least_recent((each for _, each in self), before) if fits else None
            if fits and going is None:
                going = owed(self._owned(), stream.verifier_id, len(session), _held)
            if going is None:
                raise SessionRefused(NackReason.OVERLOADED, f"no memory for a sequence of {session.limit} tokens")
            self._evict(going)
        self._read_prompt(session)
        session.admitted = True

    def _read_prompt(self, session: DraftSession) -> None:
        """Pass the prompt's length to an engine that reads prompts separately."""
        if isinstance(self._sequences, PromptReader):
            self._sequences.read_prompt(session.key, session.prompt_len)

    def _room_for(self, session: DraftSession, more: int) -> DraftSession | None:
        """Return the session to evict so that this one can grow, or None."""
        verifier = next(owner for owner, each in self._owned() if each is session)
        others = (each for _, each in self if each is not session)
        return owed(self._owned(), verifier, more, _held) or least_recent(others, self._clock())

    def _owned(self) -> Owned:
        return [(stream.verifier_id, session) for stream, session in self]

    def _evict(self, session: DraftSession) -> None:
        """Remove a session whose memory another one needs."""
        stream = next(stream for stream, each in self if each is session)
        self.remove(stream, session)
        self._evicted.append((stream, session))

    def _commit(self, stream: Stream, message: Commit) -> DraftSession:
        session = self._find(stream, message.session_id)
        if session is None:
            raise SessionRefused(NackReason.UNKNOWN, "the session is not open")
        self._check_ids(message.tokens)
        self._truncate(session, session.commit(message))
        self._read_features(session, message.features, opened=False)
        if message.tokens:
            self.outcomes.settle(session)
        return session

    def _close(self, stream: Stream, message: Close) -> None:
        session = self._find(stream, message.session_id)
        if session is not None and message.epoch >= session.epoch:
            self.remove(stream, session)

    def _truncate(self, session: DraftSession, valid: int) -> None:
        """Keep the computed state of the first `valid` tokens. The last token always remains to be computed."""
        if session.admitted:
            computed = self._sequences.length(session.key)
            self._sequences.truncate(session.key, min(valid, len(session) - 1, computed))

    def _find(self, stream: Stream, session_id: str) -> DraftSession | None:
        return self._streams.get(stream, {}).get(session_id)

    def _check_ids(self, ids: Sequence[int]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self._info.vocab_size:
            raise SessionRefused(
                NackReason.MALFORMED, f"a token id is outside the vocabulary of {self._info.vocab_size}"
            )


def _held(session: DraftSession) -> int:
    """Return the number of tokens that a session holds memory for."""
    return len(session) if session.admitted else 0


def least_recent(sessions: Iterable[DraftSession], before: float) -> DraftSession | None:
    """Return the least recently used session that holds memory and has no pending request, or None.

    Args:
        before: latest time of its last message, in seconds of the table's clock.
    """
    candidates = [
        session
        for session in sessions
        if session.admitted and not session.verifier_waits and session.last_message <= before
    ]
    return min(candidates, key=lambda session: session.last_message, default=None)


def owed(sessions: Owned, verifier: str, more: int, size: Callable[[DraftSession], int]) -> DraftSession | None:
    """Return the session that the verifier with the largest share gives up to `verifier`, or None if it need not.

    It gives one up only if `verifier` would still hold less with `more`. A verifier may use spare capacity, and gives
    it up when others need it. It gives up sessions that it waits for last.

    Args:
        size: amount that a session holds, in the unit of `more`.
    """
    held = Counter[str]()
    for owner, session in sessions:
        held[owner] += size(session)
    most = max(held, key=lambda owner: held[owner], default=verifier)
    if held[verifier] + more >= held[most]:
        return None
    given = [session for owner, session in sessions if owner == most and size(session)]
    return min(given, key=lambda session: (session.verifier_waits, session.last_message))
