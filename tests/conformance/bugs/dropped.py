"""Bugs that drop, cut or use drafts for a reason that exactness does not allow."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from drafter_service.sessions.draft_runner import DraftRunner
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftFailure, StepResult
from drafter_service.sessions.stream import Stream
from specdec.engine import Engine
from specdec.planning.certainty import Certainty
from specdec.rules.checks import proper_counts
from specdec.rules.draft import Draft, Verdict
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from specdec.wire.draft import DraftTokens
from tests.conformance.bugs.bug import Bug, Law, everywhere
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import Outcome, ScheduledChunk
from verifier_service.backends.model_step import ModelStep
from verifier_service.drafts.draft_buffer import DraftBuffer
from verifier_service.passes.engine_loop import EngineLoop


def failed_session_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A drafter that fails after a draft refuses the session and drops the draft."""
    apply = DraftRunner._apply

    def planted(runner: DraftRunner, stream: Stream, result: StepResult) -> None:
        if isinstance(result, DraftFailure):
            runner._refuse(stream, result)
        else:
            apply(runner, stream, result)

    patch.setattr(DraftRunner, "_apply", planted)


def every_row_judged(patch: pytest.MonkeyPatch) -> None:
    """If the row after a rejected draft has no distribution, the target draws again without the draft."""

    def planted(mass: Tensor, first: Sequence[int], reached: Sequence[int]) -> list[int]:
        judge(mass, range(len(mass)), [1] * len(mass))
        return list(reached)

    def redrawn(engine: Engine, chunk: ScheduledChunk, error: Exception) -> target_pass.Result:
        if chunk.drafts:
            return target_pass.verify_batch(engine, [replace(chunk, most=0)])[0]
        return without_draft(engine, chunk, error)

    judge, without_draft = proper_counts, target_pass._without_draft
    everywhere(patch, proper_counts, planted)
    patch.setattr(target_pass, "_without_draft", redrawn)


def dropped_by_token(patch: pytest.MonkeyPatch) -> None:
    """A chunk of drafts that contains a certain token is dropped."""
    add = DraftBuffer.add

    def planted(buffer: DraftBuffer, chunk: DraftTokens) -> bool:
        return 1 not in chunk.draft.tokens and add(buffer, chunk)

    patch.setattr(DraftBuffer, "add", planted)


def budget_by_token(patch: pytest.MonkeyPatch) -> None:
    """The budget of a round ends before a draft of a certain token, so that draft is never judged."""
    take = DraftBuffer.take

    def planted(buffer: DraftBuffer, gamma: int) -> Draft:
        draft = take(buffer, gamma)
        return draft.cut(draft.tokens.index(1)) if 1 in draft.tokens else draft

    patch.setattr(DraftBuffer, "take", planted)


def chain_start_of_the_opening(patch: pytest.MonkeyPatch) -> None:
    """The start of a chain stays at the position where the session was opened."""
    opened = property(lambda session: session.prompt_len, lambda session, start: None)
    patch.setattr(DraftSession, "chain_start", opened, raising=False)


def q_of_another_session(patch: pytest.MonkeyPatch) -> None:
    """In a batch of more than two, each draft is judged by the q̂ of the next session that has as many drafts."""

    def planted(mode: Mode, p: Tensor, drafts: Sequence[Draft], *others: object) -> list[Verdict]:
        alike: dict[int, list[int]] = defaultdict(list)
        for index, draft in enumerate(drafts):
            alike[len(draft.tokens)].append(index)
        moved = list(drafts)
        for members in alike.values() if len(drafts) > 2 else ():
            for index, source in zip(members, members[1:] + members[:1], strict=True):
                moved[index] = Draft(drafts[index].tokens, drafts[source].probs)
        return verify(mode, p, moved, *others)  # type: ignore[arg-type]

    everywhere(patch, verify, planted)


def low_confidence_left_out(patch: pytest.MonkeyPatch) -> None:
    """A chain that ends after a token of low confidence omits that token."""
    extend = DraftSession.extend

    def planted(
        session: DraftSession, token: int, probs: object = None, certainty: Certainty | None = None, *others: Any
    ) -> None:
        if certainty is not None and certainty.confidence < session._length.policy.min_confidence:
            session.stop_drafting()
        else:
            extend(session, token, probs, certainty, *others)  # type: ignore[arg-type]

    patch.setattr(DraftSession, "extend", planted)


def verdict_reused(patch: pytest.MonkeyPatch) -> None:
    """The group that a pass leaves out receives its previous verdicts again."""
    take, last = EngineLoop._take, dict[str, Outcome]()

    def planted(loop: EngineLoop, step: ModelStep, *rest: Any, **options: Any) -> None:
        left = [row for row in loop._rows if row not in step.results and row.kv_name in last]
        again = {row: last[row.kv_name] for row in left}
        last.update({row.kv_name: each for row, each in step.results.items() if isinstance(each, Outcome)})
        step.results.update(again)
        take(loop, step, *rest, **options)

    patch.setattr(EngineLoop, "_take", planted)


BUGS = (
    Bug("failed session refused with its drafts", Law.USE, failed_session_forgotten, ("drafts of a failing drafter",)),
    Bug(
        "rows behind a rejected draft judged",
        Law.USE,
        every_row_judged,
        ("failing target, rejection", "failing target, block"),
    ),
    Bug("drafts dropped by their token", Law.USE, dropped_by_token, ("simulated block",)),
    Bug(
        "budget that depends on the drawn token",
        Law.USE,
        budget_by_token,
        ("simulated rejection of coins", "simulated rejection of turns, pushed"),
    ),
    Bug(
        "low-confidence token left out of its chain",
        Law.USE,
        low_confidence_left_out,
        ("simulated rejection, confident", "simulated block, confident"),
    ),
    Bug(
        "q̂ of another session",
        Law.Q_AS_SAMPLED,
        q_of_another_session,
        ("simulated rejection, small batches", "simulated block, small batches"),
    ),
    Bug("verdict reused when groups take turns", Law.KV, verdict_reused, ("verdicts of two groups",)),
    Bug("chain start never moved", Law.BLOCK, chain_start_of_the_opening, ("simulated block of coins, none late",)),
)
