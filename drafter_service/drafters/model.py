"""Drafts from a small language model: one packed pass a step for every session, one token each."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from torch import Tensor

from drafter_service.drafters.base import DrafterInfo, Failed, Proposed, Work
from specdec.engine import Chunk
from specdec.engine.kv_pool import KvMemory
from specdec.rules.params import Mode, SamplingParams
from specdec.rules.proposal import propose, propose_each
from specdec.rules.sampling import History, probabilities

_TRIAL = "trial"
_TRIAL_STEPS = 8


class Model(Protocol):
    """What is used of an engine."""

    vocab_size: int
    context_length: int
    tokenizer_hash: str

    @property
    def memory(self) -> KvMemory:
        """What the KV takes."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a session of that many tokens fits at all."""

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Let a session in."""

    def reserve(self, session: str, length: int) -> bool:
        """Have memory for that many tokens."""

    def release(self, session: str) -> None:
        """Free KV."""

    def length(self, session: str) -> int:
        """Tokens with KV."""

    def truncate(self, session: str, length: int) -> None:
        """Keep the first `length` tokens' KV."""

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Append KV; logits [Σ chunk.logits, vocab_size]."""


class ModelDrafter:
    """A language model as a Drafter; q is made from its logits by the request's own sampling parameters."""

    def __init__(self, name: str, model: Model, support: int) -> None:
        """Take a loaded model and measure its step.

        Args:
            name: shown to verifiers.
            model: an engine; this drafter is its only user from now on.
            support: most ids that q̂ gives a probability.
        """
        self._model = model
        self._support = support
        self.info = DrafterInfo(
            model=name,
            tokenizer_hash=model.tokenizer_hash,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            step_seconds=self._measure(),
        )

    @property
    def memory(self) -> KvMemory:
        """What the sequences' KV takes."""
        return self._model.memory

    def can_ever_admit(self, limit: int) -> bool:
        """Whether KV for `limit` tokens fits at all."""
        return self._model.can_ever_admit(limit)

    def admit(self, key: str, limit: int, tokens: Sequence[int], domain: str) -> bool:
        """Make room for the KV of `tokens`."""
        return self._model.admit(key, limit, tokens, domain)

    def reserve(self, key: str, length: int) -> bool:
        """Make room for the KV of `length` tokens."""
        return self._model.reserve(key, length)

    def release(self, key: str) -> None:
        """Free the sequence's KV."""
        self._model.release(key)

    def length(self, key: str) -> int:
        """Tokens with KV."""
        return self._model.length(key)

    def truncate(self, key: str, length: int) -> None:
        """Keep at most the first `length` tokens' KV."""
        if length < self._model.length(key):
            self._model.truncate(key, length)

    def step(self, batch: Sequence[Work]) -> list[Proposed | Failed]:
        """One pass, then one draft for each session that has all its KV with it."""
        pending = [work.session.since(self._model.length(work.session.key)) for work in batch]
        complete = [work.count == len(tokens) for work, tokens in zip(batch, pending, strict=True)]
        chunks = [
            Chunk(work.session.key, tokens[: work.count], logits=int(last))
            for work, tokens, last in zip(batch, pending, complete, strict=True)
        ]
        logits = self._model.forward(chunks)  # [complete sessions, V]
        return self._drafts(logits, [work for work, last in zip(batch, complete, strict=True) if last])

    def _drafts(self, logits: Tensor, batch: Sequence[Work]) -> list[Proposed | Failed]:
        """A draft per row; when a row's own parameters or logits are at fault, only that row fails."""
        try:
            return self._propose(logits, batch)
        except Exception as error:  # noqa: BLE001 - whatever one row does must not reach the others
            if len(batch) == 1:
                return [Failed(batch[0].session, error)]
            return [self._drafts(logits[row : row + 1], [work])[0] for row, work in enumerate(batch)]

    def _propose(self, logits: Tensor, batch: Sequence[Work]) -> list[Proposed | Failed]:
        sessions = [work.session for work in batch]
        if not sessions:
            return []
        q = probabilities(logits, [session.params for session in sessions], [session.history for session in sessions])
        drawn = propose_each(
            [session.mode for session in sessions],
            q,
            seeds=[session.params.seed for session in sessions],
            positions=[len(session) for session in sessions],
            k=self._support,
            starts=[session.start for session in sessions],
        )
        return [Proposed(session, *each) for session, each in zip(sessions, drawn, strict=True)]

    def _measure(self) -> float:
        """Median seconds of a step for one session; 0 when there is no room to try."""
        steps = min(_TRIAL_STEPS, self._model.context_length)
        if not self._model.admit(_TRIAL, steps, [0] * steps):
            return 0.0
        try:
            return median(self._trial() for _ in range(steps))
        finally:
            self._model.release(_TRIAL)

    def _trial(self) -> float:
        started = time.perf_counter()
        q = probabilities(self._model.forward([Chunk(_TRIAL, [0], logits=1)]), [SamplingParams()], [History()])
        propose(Mode.REJECTION, q, [0], [0], self._support)
        return time.perf_counter() - started
