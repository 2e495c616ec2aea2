"""Conclusion of a round: the tokens that a verdict commits, and the report of the round."""

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

from specdec.rules.draft import NO_DRAFT, Draft, DraftStep, Verdict, certain
from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Mode
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Fallback, GammaReason, Round, RoundDetail, Speedup, Timing
from verifier_service.backends.batch_plan import HeadDraft, Outcome, Row
from verifier_service.drafts.drafts import Proposal

MOST = 16
"""Most forced tokens of one round."""


class Cut(NamedTuple):
    """Tokens that a verdict commits, up to the end of the generation."""

    tokens: tuple[int, ...]
    finish: FinishReason | None


class AskedRound(NamedTuple):
    """A round requested from the target."""

    base_len: int
    """Number of committed tokens before the round."""
    proposal: Proposal
    """Draft of the round, followed by the tokens that a grammar forces."""
    drafted: int
    """Number of draft tokens before the forced ones."""
    declined: Fallback
    """Reason that the verifier chose not to draft; NONE otherwise."""
    detail: RoundDetail | None
    """Reason for the draft length, if the call requests it."""
    since: float
    """Time of the request, by `time.perf_counter`."""

    def with_head(self, made: HeadDraft | None) -> "AskedRound":
        """Return the round with the draft that the target's head made for it; None if it did not request one."""
        if made is None:
            return self
        fallback = Fallback.NONE if made.draft.tokens else Fallback.FIRST_ROUND
        count = len(made.draft.tokens)
        proposal = self.proposal._replace(draft=made.draft, fallback=fallback, waited=made.seconds, awaited=count)
        return self._replace(proposal=proposal, drafted=count)

    def reported(self, cut: Cut, outcome: Outcome, speedup: Speedup, cached: int) -> Round:
        """Return the complete report of the round.

        Args:
            cut: committed tokens.
            outcome: verdict and timing of the pass.
            speedup: speed-up of the batch by drafting.
            cached: in the first round, number of prompt tokens found in the prefix cache at admission; else 0.
        """
        verdict, proposal = outcome.verdict, self.proposal
        if verdict.drafted < outcome.offered:
            proposal = proposal._replace(draft=NO_DRAFT, fallback=Fallback.UNAVAILABLE)
        count = len(cut.tokens)
        return Round(
            base_len=self.base_len,
            tokens=cut.tokens,
            origins=verdict.origins[:count],
            accepted=min(verdict.accepted, count),
            finish=cut.finish,
            logprobs=verdict.logprobs[:count],
            draft=_reported(proposal.draft.tokens[: verdict.drafted], verdict),
            drafter=proposal.drafter if verdict.drafted else "",
            forced=max(0, verdict.drafted - self.drafted),
            fallback=(Fallback.NONE if proposal.draft.tokens else self.declined or proposal.fallback).value,
            speedup=speedup,
            timing=Timing(proposal.waited, max(outcome.started - self.since, 0.0), outcome.seconds),
            cached_tokens=cached,
            detail=self._detail(verdict),
        )

    def _detail(self, verdict: Verdict) -> RoundDetail | None:
        """Return the details of the round, or None if the call does not request them."""
        detail, proposal = self.detail, self.proposal
        if detail is None:
            return None
        if proposal.local and self.drafted:
            detail = RoundDetail(self.drafted, GammaReason.SOURCE.value)
        steps = proposal.draft.steps if isinstance(proposal.draft, Draft) else ()
        if steps and steps[-1] and detail.reason == GammaReason.EGAG:
            detail = replace(detail, gamma=steps[-1].gamma)
        return replace(detail, network=proposal.network, judged=_with_steps(verdict.judged_tokens, steps))


def cut(committed: tuple[int, ...], room: int, stop_ids: Set[int]) -> Cut:
    """Cut the tokens of a verdict after the first stop id, which is kept, and to `room` tokens, at least 1."""
    tokens = committed[:room]
    if not stop_ids.isdisjoint(tokens):
        end = next(index for index, token in enumerate(tokens) if token in stop_ids)
        return Cut(tokens[: end + 1], FinishReason.STOP)
    return Cut(tokens, FinishReason.LENGTH if len(committed) >= room else None)


def _with_steps(judged: Sequence[JudgedToken], steps: Sequence[DraftStep | None]) -> tuple[JudgedToken, ...]:
    """Return the judged tokens, with entropy and γ of the draft step if γ is chosen by entropy."""
    return tuple(
        each if step is None else replace(each, h_norm=step.entropy, gamma=step.gamma)
        for each, step in zip_longest(judged, steps[: len(judged)])
    )


def _reported(draft: tuple[int, ...], verdict: Verdict) -> tuple[int, ...]:
    """Return the tokens of a draft in reported order. The accepted path of a tree comes first."""
    if verdict.path is None:
        return draft
    left = list(draft)
    for token in (path := verdict.tokens[: verdict.accepted]):
        left.remove(token)
    return (*path, *left)


def with_forced(draft: Draft, row: Row, tokens: Sequence[int], room: int) -> Draft:
    """Append the tokens that the row's grammar forces to a draft.

    The grammar forces the text but not its tokenization, so the target judges forced tokens like any draft that was
    not sampled: each is a point mass.

    Args:
        draft: draft of a drafter; may be empty.
        row: row whose grammar and speculation options apply.
        tokens: committed tokens of the sequence.
        room: most tokens that the draft may have.
    """
    speculation = row.call.speculation
    most = room if speculation.gamma is None else min(room, speculation.gamma)
    if row.grammar is None or speculation.mode is Mode.OFF:
        return draft
    output = (*tokens[row.call.prompt_len :], *draft.tokens)
    forced = row.grammar.forced(output, min(MOST, most - len(draft.tokens)))
    if not forced:
        return draft
    steps = (*draft.steps, *(None for _ in forced)) if draft.steps else ()
    return Draft(draft.tokens + forced, draft.probs + certain(forced, speculation.mode).probs, steps)
