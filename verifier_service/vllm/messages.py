"""What the verifier and the process of its target send each other: rows go there, and steps come back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from specdec.errors import InternalError
from specdec.rules.draft import NO_DRAFT, Draft, JoinedProbs, SparseProbs, Verdict, join_probs
from verifier_service.backends.batch_plan import Outcome, Row, ScheduledChunk
from verifier_service.backends.changes import Changes
from verifier_service.backends.model_step import ModelStep

SentDraft = tuple[tuple[int, ...], JoinedProbs | None]
SentResult = int | tuple[Verdict, int] | InternalError | None
"""A plain token, a verdict and how many drafts were offered to it, an error, or nothing for a prefill."""


class SentRow(NamedTuple):
    """A row, without what the other process knows of its sequence."""

    kv_name: str
    place: int
    """In `SharedTold`."""
    call: Any
    """The message of hop 1; None behind the first row of a sequence."""
    rank: float
    limit: int
    start: int
    """How many of the tokens were sent with the rows before."""
    tokens: tuple[int, ...]
    """Those behind."""
    goal: int
    draft: SentDraft
    masks: "WrittenMasks | None"
    runs_ahead: bool
    unasked: bool


class Order(NamedTuple):
    """The rows of a step, or those that join one, and the KV names of the sequences that have ended."""

    ended: Sequence[str]
    rows: Sequence[SentRow]
    joins: bool = False


class Report(NamedTuple):
    """A step, with the KV names of its rows in place of these."""

    changes: tuple[Sequence[str], Sequence[str]] | None
    """The sequences that end before the next step, and those whose rows join it; None where none follows unasked."""
    results: Sequence[tuple[str, SentResult]]
    chunks: Sequence[tuple[str, int, int, int | None]]
    rest: ModelStep
    """The step without these."""

    @classmethod
    def of(cls, step: ModelStep, changes: Changes | None) -> "Report":
        """A step as it is sent, with the changes behind it where another one follows."""
        results = [(row.kv_name, _sent_result(result)) for row, result in step.results.items()]
        chunks = [(chunk.row.kv_name, chunk.start, chunk.count, chunk.most) for chunk in step.chunks]
        sent = None if changes is None else (changes.ended, [row.kv_name for row in changes.rows])
        return cls(sent, results, chunks, replace(step, results={}, chunks=()))

    def step(self, rows: Mapping[str, Row]) -> ModelStep:
        """The step over these rows."""
        results = {rows[name]: self._result(sent) for name, sent in self.results}
        chunks = [ScheduledChunk(rows[name], start, count, most) for name, start, count, most in self.chunks]
        return replace(self.rest, results=results, chunks=chunks)

    def _result(self, sent: SentResult) -> Outcome | InternalError | None:
        if isinstance(sent, int):
            return Outcome(Verdict((sent,), 0, 0), self.rest.started, self.rest.seconds, 0)
        if isinstance(sent, tuple):
            verdict, offered = sent
            return Outcome(verdict, self.rest.started, self.rest.seconds, offered)
        return sent


class WrittenMasks:
    """The masks of a row's grammar, which stays where the session is; in its place for a pass."""

    def __init__(self, masks: Sequence[bytes | None] | None) -> None:
        """The mask behind the output and behind each draft, as `GrammarState.masks`; None where these failed."""
        self._masks = masks

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        """Those behind the first of the drafts; raises InternalError where there are none."""
        if self._masks is None:
            raise InternalError("the grammar failed")
        return list(self._masks[: len(drafts) + 1])


def sent_draft(draft: Draft) -> SentDraft:
    """A draft as it is sent: its q̂ in three arrays."""
    return draft.tokens, join_probs(draft.probs) if draft.probs else None


def draft_of(sent: SentDraft) -> Draft:
    """The draft that was sent."""
    tokens, probs = sent
    if probs is None:
        return Draft(tokens) if tokens else NO_DRAFT
    sizes = probs.sizes.tolist()
    ids, weights = (torch.split(torch.from_numpy(each), sizes) for each in (probs.ids, probs.weights))
    return Draft(tokens, tuple(map(SparseProbs, ids, weights)))


def _sent_result(result: Outcome | InternalError | None) -> SentResult:
    if not isinstance(result, Outcome):
        return result
    verdict = result.verdict
    plain = not (verdict.drafted or verdict.logprobs or verdict.judged_tokens)
    return verdict.tokens[0] if plain and len(verdict.tokens) == 1 else (verdict, result.offered)
