"""Drafts from a source without a model, alone or before a language model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.drafters.sequence_lengths import UNBOUNDED, SequenceLengths
from drafter_service.drafters.source_reader import SourceReader
from drafter_service.sessions.drafter import DrafterInfo, NoGuess, ScheduledSession, StepResult
from specdec.engine import SequenceMemory
from specdec.sampling import vocabulary
from specdec.sampling.vocabulary import Vocabulary


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
