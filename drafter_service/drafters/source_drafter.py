"""Drafts from a source without a model, alone or before a language model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.drafters.sequence_lengths import UNBOUNDED, SequenceLengths
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedToken, DrafterInfo, NoGuess, ScheduledSession, StepResult
from specdec.engine import SequenceMemory
from specdec.rules.draft import certain
from specdec.sampling import vocabulary
from specdec.sampling.vocabulary import Vocabulary
from specdec.sources.source import DraftSource

MakeSource = Callable[[str, int], DraftSource]
"""Makes the source of a sequence from its domain and the tokens of its beginning, which was not generated here."""
_DRAFTED = 256
"""More drafts than a session can have: tokens that were computed as drafts are read once they are committed."""


class SourceReader:
    """A source for each session, which reads what its session commits."""

    def __init__(self, make_source: MakeSource, ahead: int) -> None:
        """`ahead` is how far drafts may go past what was asked for."""
        self._make = make_source
        self._ahead = ahead
        self._read: WeakKeyDictionary[DraftSession, tuple[DraftSource, int]] = WeakKeyDictionary()
        """Each session's source, and how many tokens it has read."""

    def apart(self, name: str) -> "SourceReader":
        """A reader whose domains are not this one's."""
        return SourceReader(lambda domain, known: self._make(f"{name}/{domain}", known), self._ahead)

    def drafts(self, session: DraftSession, count: int) -> list[StepResult]:
        """The drafts that are wanted, as far as the source has an answer; none while tokens are left to be read.

        A step reads about `count` tokens, so that a long prompt does not hold up the other sessions.
        """
        source, read = self._read.get(session) or (self._make(session.domain, session.committed), 0)
        piece = session.tokens_from(read)[: min(count + _DRAFTED, session.committed - read)]
        source.read(piece)
        self._read[session] = source, read + len(piece)
        if read + len(piece) < session.committed:
            return []
        tokens = source.draft(session.tokens_from(session.committed), session.wanted(self._ahead))
        draft = certain(tokens, session.mode)
        probs = draft.probs or (None,) * len(tokens)
        return [DraftedToken(session, token, each) for token, each in zip(tokens, probs, strict=True)]


class SourceDrafter:
    """A Drafter without a model."""

    def __init__(self, name: str, kind: str, ids: Mapping[str, int], reader: SourceReader) -> None:
        """`ids` is the tokenizer's vocabulary."""
        self._lengths = SequenceLengths()
        self._reader = reader
        self.sequences: SequenceMemory = self._lengths
        self.info = DrafterInfo(name, vocabulary.fingerprint(ids), max(ids.values()) + 1, UNBOUNDED, 0.0, kind)

    def step(self, batch: Sequence[ScheduledSession]) -> list[StepResult]:
        """Draft all that is wanted for each session whose tokens are read."""
        results: list[StepResult] = []
        for scheduled in batch:
            session = scheduled.session
            self._lengths.extend(session.key, scheduled.count)
            drafts = self._reader.drafts(session, scheduled.count)
            if drafts:
                results += drafts
            elif self._lengths.length(session.key) == len(session):
                results.append(NoGuess(session))
        return results


class HybridDrafter:
    """Drafts from a source where it has an answer, else from a language model.

    Which of the two drafts is decided by the tokens before the draft alone, and each draft is sent with the
    distribution that it was made by: a point mass, or the model's q̂.
    """

    def __init__(self, model: ModelDrafter, reader: SourceReader) -> None:
        self._model = model
        self._reader = reader
        self.sequences = model.sequences
        self.info = replace(model.info, kind="hybrid", outcomes=False)

    def translated(self, target: Vocabulary) -> "HybridDrafter":
        """The same for targets of another vocabulary; its source shares nothing with this one's."""
        return HybridDrafter(self._model.translated(target), self._reader.apart(target.digest))

    def step(self, batch: Sequence[ScheduledSession]) -> list[StepResult]:
        """Draft from the source, and compute for the sessions without an answer.

        The model computes the tokens of the others when it is asked for them again.
        """
        results: list[StepResult] = []
        left: list[ScheduledSession] = []
        for scheduled in batch:
            drafts = self._reader.drafts(scheduled.session, scheduled.count)
            results += drafts
            left += [] if drafts else [scheduled]
        return [*results, *(self._model.step(left) if left else ())]
