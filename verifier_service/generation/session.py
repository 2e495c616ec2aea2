"""One generation, as the algorithm reads: propose, verify, cut, commit, yield, until it ends."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from specdec.rules.draft import NO_DRAFT, Draft
from specdec.rules.gamma import GammaController
from specdec.rules.params import FinishReason
from specdec.rules.sampling import History
from verifier_service.batching.batch_plan import NO_HISTORY, KvRequest, Row
from verifier_service.batching.scheduler import Outcome
from verifier_service.drafters.drafts import Drafts, Proposal
from verifier_service.generation.job import Job
from verifier_service.generation.rounds import Cut, Fallback, Round, Timing, cut


class Target(Protocol):
    """The target model as a session sees it; KV is its own affair."""

    def seat(self, claim: KvRequest, tokens: Sequence[int]) -> AbstractAsyncContextManager[None]:
        """Hold a right to KV, for these tokens to begin with."""

    async def prefill(self, session: str, tokens: Sequence[int], goal: int) -> None:
        """Have the KV of the first `goal` tokens."""

    async def verify(self, row: Row) -> Outcome:
        """Judge a draft."""


class Session:
    """One run of one job; the only mutable state is the committed sequence."""

    def __init__(
        self, claim: KvRequest, job: Job, chunk_tokens: int, parts: tuple[Target, Drafts, GammaController]
    ) -> None:
        """Make a session.

        Args:
            claim: to its KV; its limit is the sequence length at which the session ends at the latest.
            job: what was asked.
            chunk_tokens: longest piece of prompt in one pass.
            parts: the target, the source of drafts, and what chooses γ.
        """
        self._claim = claim
        self._job = job
        self._limit = claim.limit
        self._chunk_tokens = chunk_tokens
        self._target, self._drafts, self._gamma = parts
        self._tokens = list(job.tokens)
        self._wanted = 0
        """γ of the next round."""

    async def run(self) -> AsyncGenerator[Round, None]:
        """Yield rounds; the last one, and only it, has a finish reason."""
        ended = self._ended_before()
        if ended is not None:
            yield Round(len(self._tokens), (), (), (), 0, ended, Fallback.NONE, Timing())
            return
        # The last token of a sequence never needs KV, so this is room for every draft as well.
        async with self._target.seat(self._claim, self._tokens):
            try:
                self._wanted = self._next_gamma()
                self._drafts.begin(self._wanted)
                await self._prefill()
                finish: FinishReason | None = None
                while finish is None:
                    done = await self._round()
                    finish = done.finish
                    yield done
            finally:
                self._drafts.close()

    async def _round(self) -> Round:
        base_len = len(self._tokens)
        # The drafter reads the prompt while the target does; the first token waits for it only when γ is a promise.
        first = base_len == len(self._job.tokens)
        patient = not first or self._job.speculation.gamma is not None
        asked = self._wanted if patient else 0
        proposal = await self._drafts.propose(self._wanted, patient=patient)
        outcome = await self._target.verify(self._row(proposal.draft))
        verdict = outcome.verdict
        self._gamma.observe(verdict.drafted, verdict.accepted)
        if verdict.drafted < outcome.offered:
            self._drafts.distrust()
            proposal = Proposal(NO_DRAFT, Fallback.UNAVAILABLE, proposal.waited)
        kept = cut(verdict, self._job.end_ids, self._limit - base_len)
        self._commit(kept, judged=verdict.drafted)
        return Round(
            base_len,
            kept.tokens,
            kept.origins,
            proposal.draft.tokens[: verdict.drafted],
            kept.accepted,
            kept.finish,
            proposal.fallback,
            Timing(proposal.waited, outcome.queue, outcome.verify),
            kept.logprobs,
            asked,
        )

    def _commit(self, kept: Cut, judged: int) -> None:
        self._tokens += kept.tokens
        if kept.finish is None:
            self._wanted = self._next_gamma()
            self._drafts.commit(kept.tokens, judged, self._wanted)

    async def _prefill(self) -> None:
        """Compute all of the prompt but its last piece, which the first verdict's pass takes along."""
        goal = (len(self._tokens) - 1) // self._chunk_tokens * self._chunk_tokens
        if goal:
            await self._target.prefill(self._claim.session, self._tokens, goal)

    def _next_gamma(self) -> int:
        """γ never overshoots the room left: a round commits one token more than it accepts."""
        return min(self._gamma.gamma(), self._limit - len(self._tokens) - 1)

    def _row(self, draft: Draft) -> Row:
        job = self._job
        counted = job.params.needs_history
        history = (
            History(job.tokens[: job.prompt_len], tuple(self._tokens[job.prompt_len :])) if counted else NO_HISTORY
        )
        return Row(
            self._claim.session,
            self._tokens,
            job.rule,
            job.params,
            draft,
            history,
            job.speculation.lenience,
            job.logprobs,
        )

    def _ended_before(self) -> FinishReason | None:
        """A caller that resumes may not know that the last committed token was the last."""
        output = self._tokens[self._job.prompt_len :]
        if output and output[-1] in self._job.end_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self._tokens) >= self._limit else None
