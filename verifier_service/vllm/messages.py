"""Messages between the verifier and the process of its target: rows are sent, and steps are returned."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from specdec.errors import InternalError
from specdec.rules.draft import NO_DRAFT, Draft, JoinedProbs, SparseProbs, Verdict, join_probs
from verifier_service.backends.batch_plan import HeadDraft, HeadUse, Outcome, Row, ScheduledChunk
from verifier_service.backends.model_step import Changes, ModelStep

SentDraft = tuple[tuple[int, ...], JoinedProbs | None]
SentResult = int | tuple[Verdict, int, HeadDraft | None] | InternalError | None
"""A plain token, a verdict with the number of drafts in the pass and the draft of the head, an error, or None for a
prefill."""


class SentRow(NamedTuple):
    """A row, without the data of its sequence that the other process already has."""

    kv_name: str
    place: int
    """Cell of the sequence in `SharedFlags`."""
    call: Any
    """Protobuf message of the call; None after the first row of a sequence."""
    rank: float
    limit: int
    start: int
    """Number of tokens sent with earlier rows."""
    tokens: tuple[int, ...]
    """Tokens from `start` on."""
    goal: int
    draft: SentDraft
    masks: "WrittenMasks | None"
    runs_ahead: bool
    prefetched: bool
    head: HeadUse


class Order(NamedTuple):
    """Rows of a step, or rows that join a running step, and the KV names of the sequences that have ended."""

    ended: Sequence[str]
    rows: Sequence[SentRow]
    joins: bool = False


class Report(NamedTuple):
    """A step in which KV names stand for the rows."""

    changes: tuple[Sequence[str], Sequence[str]] | None
    """KV names of sequences that end before the next step and of those that join it; None if no step runs ahead."""
    results: Sequence[tuple[str, SentResult]]
    chunks: Sequence[tuple[str, int, int, int | None]]
    rest: ModelStep
    """The step without results and chunks."""

    @classmethod
    def of(cls, step: ModelStep, changes: Changes | None) -> "Report":
        """Create the report of a step, with the changes after it if another step follows."""
        results = [(row.kv_name, _sent_result(result)) for row, result in step.results.items()]
        chunks = [(chunk.row.kv_name, chunk.start, chunk.count, chunk.most) for chunk in step.chunks]
        sent = None if changes is None else (changes.ended, [row.kv_name for row in changes.rows])
        return cls(sent, results, chunks, replace(step, results={}, chunks=()))

    def step(self, rows: Mapping[str, Row]) -> ModelStep:
        """Rebuild the step from its rows by KV name."""
        results = {rows[name]: self._result(sent) for name, sent in self.results}
        chunks = [ScheduledChunk(rows[name], start, count, most) for name, start, count, most in self.chunks]
        return replace(self.rest, results=results, chunks=chunks)

    def _result(self, sent: SentResult) -> Outcome | InternalError | None:
        if isinstance(sent, int):
            return Outcome(Verdict((sent,), 0, 0), self.rest.started, self.rest.seconds, 0)
        if isinstance(sent, tuple):
            verdict, offered, made = sent
            return Outcome(verdict, self.rest.started, self.rest.seconds, offered, made)
        return sent


class WrittenMasks:
    """Precomputed masks of a row, which replace its grammar in the target's process."""

    def __init__(self, masks: Sequence[bytes | None] | None) -> None:
        """Store the masks after the output and after each draft, as from `GrammarState.masks`; None if these failed."""
        self._masks = masks

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        """Return the masks after the output and after each of `drafts`; raise InternalError if they failed."""
        if self._masks is None:
            raise InternalError("the grammar failed")
        return list(self._masks[: len(drafts) + 1])


def sent_draft(draft: Draft) -> SentDraft:
    """Return a draft in the form to send, with its q̂ in three arrays."""
    return draft.tokens, join_probs(draft.probs) if draft.probs else None


def draft_of(sent: SentDraft) -> Draft:
    """Rebuild a draft from its sent form."""
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
    made = result.drafted and replace(result.drafted, draft=Draft(result.drafted.draft.tokens))  # q̂ is used up
    plain = not (verdict.drafted or verdict.logprobs or verdict.judged_tokens or made)
    return verdict.tokens[0] if plain and len(verdict.tokens) == 1 else (verdict, result.offered, made)
