"""One generation, as the algorithm reads: propose, verify, cut, commit, yield, until it ends."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from specdec.errors import FieldInvalid, NoDistribution
from specdec.rules.params import FinishReason
from specdec.rules.tree import TreeDraft
from specdec.serving.tracing import Attributes, part_span
from specdec.wire.generation import GRAMMAR, Fallback, Round, RoundDetail
from verifier_service.batching.batch_plan import Outcome, Row
from verifier_service.batching.scheduler import Scheduler
from verifier_service.batching.session_gamma import SessionGamma
from verifier_service.drafters.drafts import Drafts, Proposal
from verifier_service.generation.asked import AskedRound, cut
from verifier_service.generation.credit import Credit
from verifier_service.generation.forced import with_forced

_STEADY = 3
"""Rounds with γ = 0 behind which the next one may begin before its γ is known: it could have had drafts."""


class Session:
    """One run of one call; the only mutable state is the committed sequence and the γ that was chosen for it."""

    def __init__(  # noqa: PLR0913 - the parts of a session
        self,
        admission: Row,
        chunk_tokens: int,
        target: Scheduler,
        drafts: Drafts,
        gamma: SessionGamma,
        count: Callable[[Round, int], None],
        credit: Credit | None = None,
    ) -> None:
        """Make a session.

        Args:
            admission: the session's first row, which has the call, asks for KV and computes nothing.
            chunk_tokens: longest piece of the prompt that one pass computes.
            count: called with every round and the number of drafts that it waited for, before the round is yielded.
            credit: how far the session may go; None is as far as its rounds are taken.
        """
        self._row = admission
        self._call = admission.call
        self._stop_ids = frozenset(self._call.stop_token_ids)
        self._limit = admission.limit
        self._chunk_tokens = chunk_tokens
        self._target = target
        self._drafts = drafts
        self._gamma = gamma
        self._count = count
        self._credit = credit or Credit()
        self._tokens = list(admission.tokens)
        self._wanted = 0
        """γ of the next round."""
        self._plain = _STEADY if admission.runs_ahead else 0
        """How many rounds γ has been 0, the next included."""
        self._cached = 0
        """Tokens of the prompt that had KV when the session was let in."""
        self._declined = Fallback.NONE
        """Why it is 0, where it is 0 by choice."""
        self._grounds: RoundDetail | None = None
        """Why it is what it is, where the call asks."""

    async def run(self) -> AsyncGenerator[Round, None]:
        """Yield rounds; the last one, and only it, has a finish reason."""
        ended = self._ended_before()
        if ended is not None:
            done = Round(base_len=len(self._tokens), finish=ended)
            self._count(done, 0)
            yield done
            return
        # The last token of a sequence never needs KV, so the limit has room for every draft as well.
        async with self._target.admitted(self._row) as held:
            self._cached = min(held, self._call.prompt_len)
            asked: AskedRound | None = None
            finish: FinishReason | None = None
            try:
                self._choose_gamma()
                self._drafts.begin(self._wanted)
                await self._prefill()
                asked = self._ask_at_once()
                while finish is None:
                    with part_span("round") as span:
                        asked = asked or await self._ask_in_time()
                        outcome = await self._outcome(asked)
                        committed = self._commit(asked, outcome)
                        finish = committed.finish
                        before, asked = asked, None if finish else self._ask_at_once()
                        if asked is not None:  # the other sessions ask as well before any tells, so the pass is soon
                            await asyncio.sleep(0)
                        done = self._tell(before, committed, outcome)
                        if span.records:
                            span.describe(_described(done))
                    yield done
            finally:
                if asked is not None:
                    asked.result.cancel()
                self._drafts.close()
                self._gamma.close()

    def _ask(self, proposal: Proposal) -> AskedRound:
        drafted, proposal = len(proposal.draft.tokens), self._with_forced(proposal)
        base_len = len(self._tokens)
        result = self._target.verify(self._next_row(base_len, proposal))
        return AskedRound(result, base_len, proposal, drafted, self._declined, self._grounds)

    async def _ask_in_time(self) -> AskedRound:
        """Ask for the next round behind a wait for credit, and for its draft."""
        if not self._credit.allows(len(self._tokens)):
            await self._credit.wait(len(self._tokens))
            if (asked := self._ask_at_once()) is not None:
                return asked
        return self._ask(await self._awaited())

    def _ask_at_once(self) -> AskedRound | None:
        """Ask for the next round where its draft is known; None where there is something to wait for."""
        proposal = self._known() if self._credit.allows(len(self._tokens)) else None
        return None if proposal is None else self._ask(proposal)

    async def _outcome(self, asked: AskedRound) -> Outcome:
        """The verdict on a round; raises FieldInvalid when the grammar is too complex for more."""
        try:
            return await asked.outcome()
        except NoDistribution as error:
            if self._row.grammar is None or not self._row.grammar.too_complex:
                raise
            raise FieldInvalid("the grammar is too complex: its masks take too long", "sampling.grammar") from error

    def _commit(self, asked: AskedRound, outcome: Outcome) -> Round:
        """Commit what a verdict says, and learn from it; the round as far as it is needed to go on."""
        verdict = outcome.verdict
        if not asked.proposal.local:  # nor do forced tokens say anything of the drafter
            self._gamma.observe(min(verdict.judged, asked.drafted), min(verdict.accepted, asked.drafted))
        if verdict.drafted < outcome.offered:
            self._drafts.distrust()
        committed = cut(verdict, asked.base_len, self._limit, self._stop_ids)
        self._tokens += committed.tokens
        if committed.finish is None:
            self._choose_gamma()
            self._drafts.commit(committed.tokens, verdict.drafted, self._wanted)
        return committed

    def _tell(self, asked: AskedRound, committed: Round, outcome: Outcome) -> Round:
        """All that is told of a round; it is counted."""
        cached = self._cached if asked.base_len == len(self._call.tokens) else 0
        done = asked.told(committed, outcome, self._gamma.speedup(), cached)
        self._count(done, asked.proposal.awaited)
        return done

    @property
    def _is_steady(self) -> bool:
        """Whether the next round, and as far as is known the one behind it, need nothing of this session."""
        plain = self._plain >= _STEADY and not (self._row.grammar or self._grounds or self._drafts.guesses)
        return plain and self._credit.allows(len(self._tokens) + 1)

    @property
    def _judges_drafts(self) -> bool:
        """Whether the target takes a draft in this round; not every one does in the pass that reads the prompt."""
        return self._target.drafts_first or len(self._tokens) > len(self._call.tokens)

    async def _awaited(self) -> Proposal:
        """What the next round proposes, behind a wait for it."""
        with self._target.expected(self._drafts.gathers, self._drafts.hurry):
            return await self._drafts.propose(self._wanted)

    def _known(self) -> Proposal | None:
        """What the next round proposes, where that is known now; None where there are drafts to wait for."""
        begun = self._target.runs_ahead_of(self._row.kv_name)
        if begun and self._wanted:  # this round began when the last γ was 0
            return Proposal(fallback=Fallback.NOT_WORTH_IT)
        if not self._judges_drafts:
            return Proposal(fallback=Fallback.FIRST_ROUND if self._wanted else Fallback.NONE)
        guess = self._drafts.guess()
        if begun and guess.draft.tokens:  # a source had one that was not likely to
            return Proposal(fallback=Fallback.NOT_WORTH_IT, local=True)
        return None if self._wanted and not guess.draft.tokens else guess

    def _with_forced(self, proposal: Proposal) -> Proposal:
        """The proposal with the tokens that the grammar forces behind its draft."""
        if isinstance(proposal.draft, TreeDraft) or not self._judges_drafts:
            return proposal
        draft = with_forced(proposal.draft, self._row, self._tokens, self._limit - len(self._tokens) - 1)
        if draft is proposal.draft:
            return proposal
        return replace(proposal, draft=draft, drafter=proposal.drafter if proposal.draft.tokens else GRAMMAR)

    async def _prefill(self) -> None:
        """Compute all of the prompt but its last piece, which the pass of the first verdict computes."""
        goal = (len(self._tokens) - 1) // self._chunk_tokens * self._chunk_tokens
        if goal and not self._target.runs_ahead_of(self._row.kv_name):
            await self._target.prefill(self._next_row(goal, Proposal()))

    def _next_row(self, goal: int, proposal: Proposal) -> Row:
        behind, steady = proposal.fallback is Fallback.FIRST_ROUND, self._is_steady
        draft = proposal.draft
        return replace(self._row, tokens=self._tokens, goal=goal, draft=draft, catching_up=behind, runs_ahead=steady)

    def _choose_gamma(self) -> None:
        self._wanted = self._next_gamma()
        self._plain = 0 if self._wanted else self._plain + 1

    def _next_gamma(self) -> int:
        """The γ of the next round, within the room left: a round commits one token more than it accepts."""
        gamma = self._gamma.gamma()
        room = self._limit - len(self._tokens) - 1
        self._declined = Fallback.NONE if gamma else self._drafts.declined()
        self._grounds = self._gamma.detail(gamma, room) if self._call.speculation.detail else None
        return min(gamma, room)

    def _ended_before(self) -> FinishReason | None:
        """Why there is nothing to generate; a caller that resumes may not know that the last token was the last."""
        output = self._tokens[self._call.prompt_len :]
        if output and output[-1] in self._stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self._tokens) >= self._limit else None


def _described(done: Round) -> Attributes:
    """What the span of a round says of it; times in seconds."""
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
