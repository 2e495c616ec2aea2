"""The table of all open sessions: it does what the verifiers' messages say, and frees memory when it runs out."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from drafter_service.config import DrafterSettings
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import Drafter, ScheduledSession
from drafter_service.sessions.outcomes import Outcomes, OutcomeSession
from drafter_service.sessions.refusal import SessionRefused
from drafter_service.sessions.stream import MalformedMessage, Message, Stream
from drafter_service.sessions.tree_session import TreeSession
from specdec.engine.protocol import PromptReader
from specdec.rules.prefix import common_length
from specdec.wire.session import Close, Commit, NackReason, Open

Owned = Collection[tuple[str, DraftSession]]
"""Sessions with the verifier that each belongs to."""
_IDLE_SECONDS = 2.0
"""A session without messages for so long may be evicted for one that is opened."""


class SessionTable:
    """All sessions by stream and name: two verifiers may use the same name for different sessions."""

    def __init__(
        self, drafter: Drafter, settings: DrafterSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._info = drafter.info
        self._sequences = drafter.sequences
        self.outcomes = Outcomes(drafter.sequences, settings.outcomes)
        """What is prepared for the verdicts under way."""
        self._settings = settings
        self._clock = clock
        self._streams: dict[Stream, dict[str, DraftSession]] = {}
        self._evicted: list[tuple[Stream, DraftSession]] = []

    def __len__(self) -> int:
        """Open sessions."""
        return sum(map(len, self._streams.values()))

    def __iter__(self) -> Iterator[tuple[Stream, DraftSession]]:
        return ((stream, session) for stream, sessions in self._streams.items() for session in sessions.values())

    def take(self, stream: Stream, message: Message) -> DraftSession | None:
        """Do what a message says.

        Returns:
            The session that was opened or continued; None after a Close.

        Raises:
            SessionRefused: it cannot be done.
            Exception: the drafter failed. On either error the session is removed, unless the message is of an older
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
        """Have memory for a step; returns the batch without the sessions that there is no memory for.

        A session that grows evicts one of the verifier that holds most, where its own holds less; else the sessions
        that no verifier waits for, the least recently used first; when there are none, it is evicted itself.
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
        """The sessions that were evicted since the last call."""
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
        return session

    def _replace(self, stream: Stream, earlier: DraftSession, session: DraftSession) -> None:
        """Let in a session that is opened again; what was computed of the tokens that are the same is kept."""
        self.outcomes.forget(earlier)
        if earlier.admitted and session.limit <= earlier.limit:
            session.admitted = True
            self._read_prompt(session)
            self._truncate(session, common_length(earlier.tokens_from(0), session.tokens_from(0)))
            return
        self.remove(stream, earlier)
        self._admit(stream, session)

    def _make_room(self, stream: Stream) -> None:
        """Have room for one more session of a verifier, which loses an idle one when it has as many as it may.

        Without that, the sessions of a stream that broke without a sign would count until its end is noticed. Where
        all sessions are taken, the verifier with most of them gives one back to a verifier that has fewer.

        Raises:
            SessionRefused: there is no room.
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
        """Let a session in, unless it is already too long to be drafted for; idle sessions are evicted for it."""
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
        """Tell an engine that reads prompts apart which tokens are the session's prompt."""
        if isinstance(self._sequences, PromptReader):
            self._sequences.read_prompt(session.key, session.prompt_len)

    def _room_for(self, session: DraftSession, more: int) -> DraftSession | None:
        """The session that goes so that this one can grow."""
        verifier = next(owner for owner, each in self._owned() if each is session)
        others = (each for _, each in self if each is not session)
        return owed(self._owned(), verifier, more, _held) or least_recent(others, self._clock())

    def _owned(self) -> Owned:
        return [(stream.verifier_id, session) for stream, session in self]

    def _evict(self, session: DraftSession) -> None:
        """Remove a session because another one needs its memory."""
        stream = next(stream for stream, each in self if each is session)
        self.remove(stream, session)
        self._evicted.append((stream, session))

    def _commit(self, stream: Stream, message: Commit) -> DraftSession:
        session = self._find(stream, message.session_id)
        if session is None:
            raise SessionRefused(NackReason.UNKNOWN, "the session is not open")
        self._check_ids(message.tokens)
        self._truncate(session, session.commit(message))
        if message.tokens:
            self.outcomes.settle(session)
        return session

    def _close(self, stream: Stream, message: Close) -> None:
        session = self._find(stream, message.session_id)
        if session is not None and message.epoch >= session.epoch:
            self.remove(stream, session)

    def _truncate(self, session: DraftSession, valid: int) -> None:
        """Keep what was computed of the first `valid` tokens; the last token is always left to compute."""
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
    """Tokens that a session has memory for."""
    return len(session) if session.admitted else 0


def least_recent(sessions: Iterable[DraftSession], before: float) -> DraftSession | None:
    """The session longest unheard of, since `before`, that holds memory and that no verifier waits for."""
    candidates = [
        session
        for session in sessions
        if session.admitted and not session.verifier_waits and session.last_message <= before
    ]
    return min(candidates, key=lambda session: session.last_message, default=None)


def owed(sessions: Owned, verifier: str, more: int, size: Callable[[DraftSession], int]) -> DraftSession | None:
    """What the verifier that holds most gives back to one that holds less, even with `more`; None when none does.

    A verifier may use what nobody else needs, and keeps no more than the others want to have, too. It gives back what
    it waits for last of all.

    Args:
        size: what a session holds, in the unit of `more`.
    """
    held = Counter[str]()
    for owner, session in sessions:
        held[owner] += size(session)
    most = max(held, key=lambda owner: held[owner], default=verifier)
    if held[verifier] + more >= held[most]:
        return None
    given = [session for owner, session in sessions if owner == most and size(session)]
    return min(given, key=lambda session: (session.verifier_waits, session.last_message))
