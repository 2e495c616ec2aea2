"""Who takes part in a step: waiting verifiers before idle time, short catch-ups before long prompts."""

from dataclasses import replace

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.step_plan import plan_step
from tests.drafter_fakes import OPEN


def _session(name: str, drafts: int = 0) -> DraftSession:
    session = DraftSession(name, replace(OPEN, session_id=name, gamma=2), 64)
    for _ in range(drafts):
        session.extend(4)
    return session


def _planned(*wanting: tuple[DraftSession, int], chunk_tokens: int = 8) -> dict[str, int]:
    return {each.session.key: each.count for each in plan_step(wanting, chunk_tokens)}


def test_nobody_wants_nothing() -> None:
    assert plan_step([], 8) == []


def test_a_session_that_is_waited_for_goes_before_drafting_ahead() -> None:
    assert _planned((_session("ahead", drafts=2), 1), (_session("waited"), 1)) == {"waited": 1}


def test_drafting_ahead_runs_when_nobody_waits() -> None:
    assert _planned((_session("a", drafts=2), 1), (_session("b", drafts=3), 1)) == {"a": 1, "b": 1}


def test_one_token_steps_run_however_small_the_budget_is() -> None:
    assert _planned((_session("a"), 1), (_session("b"), 1), (_session("c"), 1), chunk_tokens=1) == dict.fromkeys(
        "abc", 1
    )


def test_a_long_prompt_is_computed_in_parts() -> None:
    assert _planned((_session("long"), 20)) == {"long": 8}


def test_a_long_prompt_gets_what_short_ones_leave() -> None:
    assert _planned((_session("long"), 20), (_session("short"), 3), (_session("one"), 1)) == {
        "one": 1,
        "short": 3,
        "long": 5,
    }


def test_what_does_not_fit_waits() -> None:
    assert _planned((_session("a"), 8), (_session("b"), 9)) == {"a": 8}
