"""Sources without a model, one for each session, which read what the session commits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedToken, StepResult
from drafter_service.sessions.tree_session import TreeSession
from specdec.planning.gamma import AcceptanceEstimate
from specdec.rules.draft import Draft, certain
from specdec.sources.maker import usual_price
from specdec.sources.sampled import IN_DRAFTER, CountSampling, drafted
from specdec.sources.source import DraftSource

MakeSource = Callable[[str, int], DraftSource]
"""Creates the source of a sequence from its domain and the number of leading tokens that were not generated here."""
_DRAFTED = 256
"""Upper bound on the drafts of a session. Tokens computed as drafts are read when they are committed."""
_LONGEST = 16
"""Maximum number of guesses in one pass of a draft model."""


@dataclass(slots=True)
class _Reading:
    """The source of one session."""

    source: DraftSource
    read: int = 0
    """Number of the session's tokens that the source has read."""
    right: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    """Share of committed tokens that the source would have guessed; one token of each verdict counts."""


class SourceReader:
    """One source per session, which reads the tokens that its session commits."""

    def __init__(self, make_source: MakeSource, ahead: int, *, sampled: bool = False) -> None:
        """Create the reader without sessions.

        Args:
            make_source: creates the source of a session.
            ahead: maximum number of drafts beyond the requested draft.
            sampled: whether a source that counts draws its drafts from the counts.
        """
        self._make = make_source
        self._ahead = ahead
        self._sampled = sampled
        self._readings: WeakKeyDictionary[DraftSession, _Reading] = WeakKeyDictionary()

    def apart(self, name: str) -> "SourceReader":
        """Return a reader whose domains are separate from this reader's."""
        return SourceReader(
            lambda domain, known: self._make(f"{name}/{domain}", known), self._ahead, sampled=self._sampled
        )

    def drafts(self, session: DraftSession, count: int) -> list[StepResult]:
        """Return the wanted drafts that the source can guess; none while committed tokens are still unread.

        A step reads about `count` tokens, so a long prompt does not delay the other sessions.
        """
        reading = self._advanced(session, count)
        if reading is None:
            return []
        draft = self._drawn(reading, session, session.wanted(self._ahead))
        probs = draft.probs or (None,) * len(draft.tokens)
        return [DraftedToken(session, token, each) for token, each in zip(draft.tokens, probs, strict=True)]

    def _drawn(self, reading: _Reading, session: DraftSession, most: int) -> Draft:
        """Return up to `most` drafts, drawn from counts if the reader samples and the session drafts chains."""
        samples = self._sampled and not isinstance(session, TreeSession)
        sampling = CountSampling.of(session.params, session.mode, IN_DRAFTER) if samples else None
        drafts = session.tokens_from(session.committed)
        drawn = drafted(reading.source, sampling, drafts, most, len(session), session.chain_start)
        return certain(_guessed(reading, session, most), session.mode) if drawn is None else drawn

    def guesses(self, session: DraftSession, count: int) -> list[int]:
        """Return guesses of the next drafts, which a draft model confirms or corrects in one pass.

        The model's own draft follows the last guess, so there is one guess fewer than drafts are wanted. The number of
        guesses depends on committed tokens alone: never on a draft, whose random number may be used again after a
        rejection.
        """
        reading = self._advanced(session, count)
        if reading is None:
            return []
        most = min(session.wanted(self._ahead) - 1, _worthwhile(reading.right.alpha))
        return _guessed(reading, session, most) if most > 0 else []

    def _advanced(self, session: DraftSession, count: int) -> _Reading | None:
        """Let the source read on. Return its state, or None while committed tokens are still unread."""
        reading = self._readings.get(session)
        if reading is None:
            reading = self._readings[session] = _Reading(self._make(session.domain, session.committed))
        start = reading.read
        piece = session.tokens_from(start)[: min(count + _DRAFTED, session.committed - start)]
        if piece and start >= session.prompt_len:
            reading.right = reading.right.observed(1, int(reading.source.draft((), 1) == piece[:1]))
        reading.source.read(piece)
        reading.read += len(piece)
        return reading if reading.read == session.committed else None


def _guessed(reading: _Reading, session: DraftSession, most: int) -> list[int]:
    """Return up to `most` guesses of the tokens after the session's drafts."""
    return reading.source.draft(session.tokens_from(session.committed), most)


def _worthwhile(alpha: float) -> int:
    """Return the number of guesses after which one more is less likely to be reached and right than it costs."""
    if alpha >= 1.0:
        return _LONGEST
    return min(_LONGEST, int(math.log(usual_price()) / math.log(alpha))) if alpha > 0.0 else 0


class Guesser:
    """Guesses of a draft model's next tokens, from the first of several sources that has one."""

    def __init__(self, readers: Sequence[SourceReader]) -> None:
        """Ask `readers` in their order."""
        self._readers = readers

    def guesses(self, session: DraftSession, count: int) -> list[int]:
        """Return guesses of the session's next drafts; all sources read about `count` committed tokens."""
        guesses = [reader.guesses(session, count) for reader in self._readers]
        return next((each for each in guesses if each), [])
