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
"""Creates the source of a sequence from its domain and the number of leading tokens that were not generated here."""
_DRAFTED = 256
"""Upper bound on the drafts of a session. Tokens computed as drafts are read when they are committed."""


class SourceReader:
    """One source per session, which reads the tokens that its session commits."""

    def __init__(self, make_source: MakeSource, ahead: int) -> None:
        """Allow drafts of up to `ahead` tokens beyond the requested draft."""
        self._make = make_source
        self._ahead = ahead
        self._read: WeakKeyDictionary[DraftSession, tuple[DraftSource, int]] = WeakKeyDictionary()
        """Each session's source, and how many tokens it has read."""

    def apart(self, name: str) -> "SourceReader":
        """Return a reader whose domains are separate from this reader's."""
        return SourceReader(lambda domain, known: self._make(f"{name}/{domain}", known), self._ahead)

    def drafts(self, session: DraftSession, count: int) -> list[StepResult]:
        """Return the wanted drafts that the source can guess; none while committed tokens are still unread.

        A step reads about `count` tokens, so a long prompt does not delay the other sessions.
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
        """Create the drafter; `ids` is the tokenizer's vocabulary."""
        self._lengths = SequenceLengths()
        self._reader = reader
        self.sequences: SequenceMemory = self._lengths
        self.info = DrafterInfo(name, vocabulary.fingerprint(ids), max(ids.values()) + 1, UNBOUNDED, 0.0, kind)

    def step(self, batch: Sequence[ScheduledSession]) -> list[StepResult]:
        """Draft all wanted tokens for each session whose tokens have been read."""
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
    """Drafts from a source if it has a guess, else from a language model.

    The choice depends only on the tokens before the draft. Each draft carries the distribution that it was drawn from:
    a point mass, or the model's q̂.
    """

    def __init__(self, model: ModelDrafter, reader: SourceReader) -> None:
        self._model = model
        self._reader = reader
        self.sequences = model.sequences
        self.info = replace(model.info, kind="hybrid", outcomes=False)

    def translated(self, target: Vocabulary) -> "HybridDrafter":
        """Return such a drafter for targets with another vocabulary; its source is separate from this one's."""
        return HybridDrafter(self._model.translated(target), self._reader.apart(target.digest))

    def step(self, batch: Sequence[ScheduledSession]) -> list[StepResult]:
        """Draft from the source, and run the model for the sessions without a guess.

        The model computes the tokens of the other sessions when it next drafts for them.
        """
        results: list[StepResult] = []
        left: list[ScheduledSession] = []
        for scheduled in batch:
            drafts = self._reader.drafts(scheduled.session, scheduled.count)
            results += drafts
            left += [] if drafts else [scheduled]
        return [*results, *(self._model.step(left) if left else ())]
