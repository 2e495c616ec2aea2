"""Drafts from the sequence itself: what followed when the same few tokens came before; a point mass, never sampled."""

from collections.abc import Mapping, Sequence

import torch

from drafter_service.drafters.base import DrafterInfo, Nothing, Outcome, Proposed, Work
from drafter_service.drafters.lengths import UNBOUNDED, Lengths
from drafter_service.sessions.session import Session
from specdec.rules import vocabulary
from specdec.rules.draft import MAX_WEIGHT, SparseProbs
from specdec.rules.params import Mode

_REACH = 4096
"""How many tokens back it looks."""


class PromptLookup(Lengths):
    """A Drafter without a model (prompt lookup decoding, as in transformers and vLLM)."""

    def __init__(self, name: str, ids: Mapping[str, int], longest: int) -> None:
        """`ids` is the tokenizer's vocabulary; `longest` the most tokens that are looked for at once."""
        super().__init__()
        self._longest = longest
        self.info = DrafterInfo(name, vocabulary.fingerprint(ids), max(ids.values()) + 1, UNBOUNDED, 0.0)

    def step(self, batch: Sequence[Work]) -> list[Outcome]:
        """One draft for each session whose last tokens came before."""
        outcomes: list[Outcome] = []
        for work in batch:
            self.extend(work.session.key, work.count)
            if self.length(work.session.key) == len(work.session):
                outcomes.append(self._guess(work.session))
        return outcomes

    def _guess(self, session: Session) -> Outcome:
        token = continuation(session.since(max(0, len(session) - _REACH)), self._longest)
        if token is None:
            return Nothing(session)
        sure = SparseProbs(torch.tensor([token]), torch.tensor([MAX_WEIGHT]))
        return Proposed(session, token, None if session.mode is Mode.COUPLED else sure)


def continuation(tokens: Sequence[int], longest: int) -> int | None:
    """The token that followed the latest earlier place of the longest suffix found, of at most `longest` tokens."""
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        suffix = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - 1] == suffix[-1] and tokens[end - size : end] == suffix:
                return tokens[end]
    return None
