"""State of one generation in the loop: committed tokens, draft of the next round, and credit."""

import math
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from typing import NamedTuple, Protocol

import structlog

from specdec.errors import AllMasked, FieldInvalid, InternalError, NoDistribution
from specdec.grammar.state import TokenMasks
from specdec.sampling.params import FinishReason
from specdec.serving.telemetry.spans import Attributes, TraceSpan
from specdec.serving.telemetry.tracing import begin_part
from specdec.trees.tree import TreeDraft
from specdec.wire.generation import GRAMMAR, Fallback, Round, RoundDetail
from verifier_service.backends.batch_plan import Outcome, Row
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.passes.conclude import AskedRound, Cut, cut, with_forced
from verifier_service.speculation.session_gamma import SessionGamma

_STEADY = 3
"""Number of consecutive plain rounds after which the next pass may start before γ is chosen. A draft could then arrive
too late for that pass."""

_log = structlog.get_logger()


class Reader(Protocol):
    """Receiver of a generation's rounds. Methods run on the event loop and must not block."""

    def add(self, done: Round) -> None:
        """Receive a round. Only the last round has a finish reason."""

    def failed(self, error: Exception) -> None:
        """Receive the error that ends the generation, after all earlier rounds."""


class Passes(Protocol):
    """Interface of the scheduling loop for a sequence."""

    drafts_first: bool
    """Whether the pass that computes the end of a prompt can also judge a draft."""

    def submit(self, sequence: "Sequence", row: Row) -> None:
        """Schedule a row for the next pass. The loop calls `Sequence.conclude` with its result."""

    def await_draft(self, sequence: "Sequence", gamma: int) -> None:
        """Request a draft of γ tokens. The loop calls `Sequence.drafted` when it arrives or the wait ends."""

    def runs_ahead_of(self, kv_name: str) -> bool:
        """Whether the next, plain round of a sequence has started before the sequence requested it."""

    def leave(self, sequence: "Sequence") -> None:
        """Remove an ended sequence with its rows, and release its KV."""


class _Committed(NamedTuple):
    """A committed round not yet sent to the reader."""

    asked: AskedRound
    cut: Cut
    outcome: Outcome
    span: TraceSpan | None


class Sequence:
    """State of one generation. All methods run on the event loop."""

    def __init__(  # noqa: PLR0913 - the parts of a sequence
        self,
        admission: Row,
        chunk_tokens: int,
        loop: Passes,
        drafts: Drafts,
        gamma: SessionGamma,
        count: Callable[[Round, int], None],
        reader: Reader,
        credit: float = math.inf,
    ) -> None:
        """Create a sequence; `admitted` begins its first round.

        Args:
            admission: first row, which holds the call, requests KV and computes nothing.
            chunk_tokens: most prompt tokens that one pass computes.
            loop: the scheduling loop.
            drafts: source of drafts.
            gamma: chooses the draft length.
            count: called with every round and the number of drafts that it waited for, before the reader gets it.
            reader: receives the rounds.
            credit: sequence length in tokens from which on no round begins until more is granted.
        """
        self.row = admission
        self.drafts = drafts
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None
        """Called once when the sequence ends."""
        self._call = admission.call
        self._stop_ids = frozenset(self._call.stop_token_ids)
        self._limit = admission.limit
        self._chunk_tokens = chunk_tokens
        self._loop = loop
        self._gamma = gamma
        self._count = count
        self._reader = reader
        self._credit = credit
        self._context = copy_context()
        """Context with the ids and the trace of the call."""
        self._tokens = list(admission.tokens)
        self._wanted = 0
        """γ of the next round."""
        self._plain = _STEADY if admission.runs_ahead else 0
        """Number of consecutive rounds with γ = 0, including the next one."""
        self._cached = 0
        """Number of prompt tokens found in the prefix cache at admission."""
        self._declined = Fallback.NONE
        """Reason that γ is 0; NONE if it is not 0."""
        self._detail: RoundDetail | None = None
        """Reason for γ, if the call requests it."""
        self._asked: AskedRound | None = None
        """The requested round whose verdict is pending."""
        self._scores = admission.scores
        """Log probabilities of the prompt, until the first round reports them."""
        self._stalled = False
        """Whether the next round waits for credit."""
        self._committed: _Committed | None = None
        self._span: TraceSpan | None = None
        """Trace span of the current round."""

    @property
    def kv_name(self) -> str:
        """Name of the sequence's KV at the engine."""
        return self.row.kv_name

    def ended_before(self) -> bool:
        """Return whether there is nothing to generate, and end the sequence if so.

        A caller that resumes may not know that the generation was complete.
        """
        finish = self._finish_of_prompt()
        if finish is None:
            return False
        self._give(Round(base_len=len(self._tokens), finish=finish), 0)
        self.close()
        return True

    def follow(self, grammar: TokenMasks) -> None:
        """Apply a grammar from the first round on."""
        self.row = replace(self.row, grammar=grammar)

    def admitted(self, found: int) -> None:
        """Begin the first round after admission. The first `found` tokens have KV already."""
        self._cached = min(found, self._call.prompt_len)
        self._span = self._context.run(begin_part, "round")
        self._choose_gamma()
        self._context.run(self.drafts.begin, self._wanted)
        goal = (len(self._tokens) - 1) // self._chunk_tokens * self._chunk_tokens
        if goal and not self._loop.runs_ahead_of(self.kv_name):
            # Prefill all but the last piece of the prompt, which the pass of the first verdict computes.
            self._loop.submit(self, self._next_row(goal, Proposal()))
        else:
            self.go_on()

    def conclude(self, outcome: Outcome | None) -> None:
        """Commit a verdict and request the next round; None ends a prefill. `tell` sends the round to the reader."""
        asked, self._asked = self._asked, None
        if asked is None or outcome is None:
            if asked is not None:
                raise InternalError("a row came back without a verdict")
            self.go_on()
            return
        asked = asked.with_head(outcome.drafted)
        committed = self._commit(asked, outcome)
        if self.row.scores is not None:
            self.row = replace(self.row, scores=None)
        span, self._span = self._span, None
        self._committed = _Committed(asked, committed, outcome, span)
        if committed.finish is not None:
            self._loop.leave(self)
            return
        if span is not None:
            self._span = self._context.run(begin_part, "round")
        self.go_on()

    def tell(self) -> None:
        """Send the last committed round to the reader, and end the sequence after its final round."""
        if (last := self._committed) is None:
            return
        self._committed = None
        cached = self._cached if last.asked.base_len == len(self._call.tokens) else 0
        done = last.asked.reported(last.cut, last.outcome, self._gamma.speedup(), cached)
        if self._scores is not None:
            done = done._replace(prompt_logprobs=self._scores.all)
            self._scores = None
        if last.span is not None:
            last.span.describe(_described(done))
            last.span.end()
        self._give(done, last.asked.proposal.awaited)
        if done.finish is not None:
            self.close()

    def drafted(self, proposal: Proposal) -> None:
        """Request the round with the draft that has arrived."""
        self._ask(proposal)

    def grant(self, length: float) -> None:
        """Set the sequence length in tokens from which on no round begins."""
        self._credit = length
        if self._stalled and self._allows(len(self._tokens)):
            self.guarded(self.go_on)

    def go_on(self) -> None:
        """Request the next round if its draft is known, otherwise request the draft. Stall without credit."""
        self._stalled = not self._allows(len(self._tokens))
        if self._stalled:
            return
        proposal = self._known()
        if proposal is None:
            self._context.run(self._loop.await_draft, self, self._wanted)
        else:
            self._ask(proposal)

    def guarded(self, step: Callable[..., None], *arguments: object) -> None:
        """Run a step; an error ends only this sequence."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - a bug in one sequence leaves the others alone
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End with an error, after the committed rounds."""
        if self.ended:
            return
        try:
            self.tell()
        except Exception as bug:  # noqa: BLE001 - report the first error
            _log.error("round_untold", exc_info=bug)
        if not self.ended:
            if self._span is not None:
                self._span.fail(error)
            self.close()
            self._reader.failed(self._explained(error))

    def close(self) -> None:
        """End now. The reader receives nothing more."""
        if self.ended:
            return
        self.ended, self._committed = True, None
        self._loop.leave(self)
        self.drafts.close()
        self._gamma.close()
        if self._span is not None:
            self._span.end()
        self.on_end()

    def _explained(self, error: Exception) -> Exception:
        """Return the error to report, FieldInvalid if what the request asks for leaves no token."""
        grammar = self.row.grammar
        if isinstance(error, NoDistribution) and grammar is not None and grammar.too_complex:
            return FieldInvalid("the grammar is too complex: its masks take too long", "sampling.grammar")
        if isinstance(error, AllMasked):
            return FieldInvalid(error.message, "sampling" if grammar is None else "sampling.grammar")
        return error

    def _give(self, done: Round, awaited: int) -> None:
        self._count(done, awaited)
        self._reader.add(done)

    def _ask(self, proposal: Proposal) -> None:
        drafted, proposal = len(proposal.draft.tokens), self._with_forced(proposal)
        base_len = len(self._tokens)
        self._asked = AskedRound(base_len, proposal, drafted, self._declined, self._detail, time.perf_counter())
        self._loop.submit(self, self._next_row(base_len, proposal))

    def _commit(self, asked: AskedRound, outcome: Outcome) -> Cut:
        """Commit the tokens of a verdict and update the acceptance estimates."""
        verdict = outcome.verdict
        if not asked.proposal.local:  # forced tokens do not count either
            judged, accepted = (min(each, asked.drafted) for each in (verdict.judged, verdict.accepted))
            self._gamma.observe(judged, accepted, verdict.overlaps)
        if asked.proposal.head:
            self._gamma.observe_second(kept=None if verdict.path is None else verdict.path[:1] == (1,))
        if verdict.drafted < outcome.offered:
            self.drafts.distrust()
        committed = cut(verdict.tokens, self._limit - asked.base_len, self._stop_ids)
        self._tokens += committed.tokens
        if committed.finish is None:
            if outcome.features is not None:
                self.drafts.read(outcome.features)
            self._choose_gamma()
            self.drafts.commit(committed.tokens, verdict.drafted, self._wanted)
        return committed

    @property
    def _is_steady(self) -> bool:
        """Whether the next round, and probably the one after it, need no decision by this sequence."""
        plain = self._plain >= _STEADY and not (self.row.grammar or self._detail or self.drafts.guesses)
        return plain and self._allows(len(self._tokens) + 1)

    @property
    def _judges_drafts(self) -> bool:
        """Whether the target judges drafts in this round. Some targets do not in the pass that computes the prompt."""
        return self._loop.drafts_first or len(self._tokens) > len(self._call.tokens)

    def _allows(self, length: int) -> bool:
        """Whether the credit allows a round after `length` committed tokens."""
        return length < self._credit

    def _known(self) -> Proposal | None:
        """Return the proposal of the next round if it is known now, or None if a draft must be requested."""
        begun = self._loop.runs_ahead_of(self.kv_name)
        if begun and self._wanted:  # this round started while γ was still 0
            return Proposal(fallback=Fallback.NOT_WORTH_IT)
        if not self._judges_drafts:
            return Proposal(fallback=Fallback.FIRST_ROUND if self._wanted else Fallback.NONE)
        guess = self.drafts.guess()
        if begun and guess.draft.tokens:  # a source unexpectedly has a draft
            return Proposal(fallback=Fallback.NOT_WORTH_IT, local=True)
        return None if self._wanted and not guess.draft.tokens else guess

    def _with_forced(self, proposal: Proposal) -> Proposal:
        """Return the proposal with the tokens that the grammar forces after its draft."""
        if self.row.grammar is None or isinstance(proposal.draft, TreeDraft) or not self._judges_drafts:
            return proposal
        draft = with_forced(proposal.draft, self.row, self._tokens, self._limit - len(self._tokens) - 1)
        if draft is proposal.draft:
            return proposal
        return proposal._replace(draft=draft, drafter=proposal.drafter if proposal.draft.tokens else GRAMMAR)

    def _next_row(self, goal: int, proposal: Proposal) -> Row:
        own, behind = self.row, proposal.fallback is Fallback.FIRST_ROUND
        steady, draft = self._is_steady, proposal.draft
        gamma = 0 if draft.tokens else proposal.head  # a grammar may force tokens, which need no draft
        return Row(
            own.call, own.kv_name, own.rank, own.limit, self._tokens, goal, draft, behind, own.grammar, steady,
            scores=own.scores, head=own.head.drafting(gamma, siblings=proposal.siblings),
        )  # fmt: skip

    def _choose_gamma(self) -> None:
        self._wanted = self._next_gamma()
        self._plain = 0 if self._wanted else self._plain + 1

    def _next_gamma(self) -> int:
        """Return γ of the next round within the room left. A round commits one token more than it accepts."""
        gamma = self._gamma.gamma()
        room = self._limit - len(self._tokens) - 1
        self._declined = Fallback.NONE if gamma else self.drafts.declined()
        self._detail = self._gamma.detail(gamma, room) if self._call.speculation.detail else None
        return min(gamma, room)

    def _finish_of_prompt(self) -> FinishReason | None:
        output = self._tokens[self._call.prompt_len :]
        if output and output[-1] in self._stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self._tokens) >= self._limit else None


def _described(done: Round) -> Attributes:
    """Return the attributes of a round's trace span; times are in seconds."""
    return {
        "specdec.base_len": done.base_len,
        "specdec.tokens": len(done.tokens),
        "specdec.drafted": len(done.draft),
        "specdec.accepted": done.accepted,
        "specdec.drafter": done.drafter,
        "specdec.fallback": done.fallback,
        "specdec.draft_seconds": done.timing.draft,
        "specdec.queue_seconds": done.timing.queue,
        "specdec.verify_seconds": done.timing.verify,
    }
