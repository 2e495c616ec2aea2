"""Drafts from the sequence itself: the token that followed when the same few tokens came before."""

from collections.abc import Mapping, Sequence

import torch

from drafter_service.drafters.sequence_lengths import UNBOUNDED, SequenceLengths
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedToken, DrafterInfo, NoGuess, ScheduledSession
from specdec.engine import SequenceMemory
from specdec.rules import vocabulary
from specdec.rules.draft import MAX_WEIGHT, SparseProbs
from specdec.rules.params import Mode

_WINDOW = 4096
"""Most tokens, counted from the end, that are searched."""


class PromptLookup:
    """A Drafter without a model (prompt lookup decoding, as in transformers and vLLM).

    A guess is not sampled: its distribution q̂ is a point mass.
    """

    def __init__(self, name: str, ids: Mapping[str, int], longest: int) -> None:
        """Take the tokenizer's vocabulary `ids`; `longest` is the most tokens of a suffix that is searched for."""
        self._longest = longest
        self._lengths = SequenceLengths()
        self.sequences: SequenceMemory = self._lengths
        self.info = DrafterInfo(name, vocabulary.fingerprint(ids), max(ids.values()) + 1, UNBOUNDED, 0.0)

    def step(self, batch: Sequence[ScheduledSession]) -> list[DraftedToken | NoGuess]:
        """Draft one token for each session whose last tokens came before."""
        results: list[DraftedToken | NoGuess] = []
        for scheduled in batch:
            session = scheduled.session
            self._lengths.extend(session.key, scheduled.count)
            if self._lengths.length(session.key) == len(session):
                results.append(self._guess(session))
        return results

    def _guess(self, session: DraftSession) -> DraftedToken | NoGuess:
        token = continuation(session.tokens_from(max(0, len(session) - _WINDOW)), self._longest)
        if token is None:
            return NoGuess(session)
        point_mass = SparseProbs(torch.tensor([token]), torch.tensor([MAX_WEIGHT]))
        return DraftedToken(session, token, None if session.mode is Mode.COUPLED else point_mass)


def continuation(tokens: Sequence[int], longest: int) -> int | None:
    """The token that followed the latest earlier occurrence of the longest suffix, of at most `longest` tokens."""
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        suffix = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - 1] == suffix[-1] and tokens[end - size : end] == suffix:
                return tokens[end]
    return None
