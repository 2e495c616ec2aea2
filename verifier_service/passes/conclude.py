"""What a verdict commits, and what is told of its round."""

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import NamedTuple

from specdec.rules.draft import NO_DRAFT, Draft, DraftStep, Verdict, certain
from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Mode
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Fallback, GammaReason, Round, RoundDetail, Speedup, Timing
from verifier_service.backends.batch_plan import Outcome, Row
from verifier_service.drafts.drafts import Proposal

MOST = 16
"""Most forced tokens of one round."""


class Cut(NamedTuple):
    """What a verdict commits, up to the end of the generation."""

    tokens: tuple[int, ...]
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class AskedRound:
    """A round that the target was asked for."""

    base_len: int
    """Committed tokens before it."""
    proposal: Proposal
    """Its draft, with the tokens that a grammar forces behind it."""
    drafted: int
    """Tokens of the draft before those."""
    declined: Fallback
    """Why no drafter was to draft, where that was by choice."""
    grounds: RoundDetail | None
    """Why as much was to be drafted, where the call asks."""
    since: float = field(default_factory=time.perf_counter)

    def told(self, cut: Cut, outcome: Outcome, speedup: Speedup, cached: int) -> Round:
        """The round with all that is told of it.

        Args:
            cut: what the verdict commits.
            speedup: what drafts bring the batch.
            cached: tokens of the prompt that had KV when the session was let in, in its first round.
        """
        verdict, proposal = outcome.verdict, self.proposal
        if verdict.drafted < outcome.offered:
            proposal = replace(proposal, draft=NO_DRAFT, fallback=Fallback.UNAVAILABLE)
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
        """What the round rests on, where the call asks."""
        grounds, proposal = self.grounds, self.proposal
        if grounds is None:
            return None
        if proposal.local and self.drafted:
            grounds = RoundDetail(self.drafted, GammaReason.SOURCE.value)
        steps = proposal.draft.steps if isinstance(proposal.draft, Draft) else ()
        if steps and steps[-1] and grounds.reason == GammaReason.EGAG:
            grounds = replace(grounds, gamma=steps[-1].gamma)
        return replace(grounds, network=proposal.network, judged=_with_steps(verdict.judged_tokens, steps))


def cut(committed: tuple[int, ...], room: int, stop_ids: Set[int]) -> Cut:
    """Cut the tokens of a verdict behind the first stop id, which is kept, and at `room` tokens, at least 1."""
    tokens = committed[:room]
    if not stop_ids.isdisjoint(tokens):
        end = next(index for index, token in enumerate(tokens) if token in stop_ids)
        return Cut(tokens[: end + 1], FinishReason.STOP)
    return Cut(tokens, FinishReason.LENGTH if len(committed) >= room else None)


def _with_steps(judged: Sequence[JudgedToken], steps: Sequence[DraftStep | None]) -> tuple[JudgedToken, ...]:
    """The numbers of each token, with those of its draft step where γ is chosen by entropy."""
    return tuple(
        each if step is None else replace(each, h_norm=step.entropy, gamma=step.gamma)
        for each, step in zip_longest(judged, steps[: len(judged)])
    )


def _reported(draft: tuple[int, ...], verdict: Verdict) -> tuple[int, ...]:
    """The tokens of a draft as they are told: of a tree, the accepted path comes first."""
    if verdict.path is None:
        return draft
    left = list(draft)
    for token in (path := verdict.tokens[: verdict.accepted]):
        left.remove(token)
    return (*path, *left)


def with_forced(draft: Draft, row: Row, tokens: Sequence[int], room: int) -> Draft:
    """The draft, and after it the tokens that the grammar of the row forces.

    The text is forced, but not the way in which tokens write it, so the target judges them as it judges any draft that
    was not sampled: each is a point mass.

    Args:
        draft: what a drafter drafted; it may be empty.
        room: tokens that the draft may have.
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
