"""Sessions of a step: waiting verifiers before idle time, short catch-ups before long prompts, equal shares."""

from collections import Counter
from dataclasses import replace

import pytest

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.step_plan import StepPlanner, Wanting
from tests.support.drafter_fakes import OPEN


def _session(name: str, drafts: int = 0) -> DraftSession:
    session = DraftSession(name, replace(OPEN, session_id=name, gamma=2), 64)
    for _ in range(drafts):
        session.extend(4)
    return session


def _planned(*wanting: tuple[DraftSession, int], chunk_tokens: int = 8) -> dict[str, int]:
    wants = [Wanting("v", session, pending) for session, pending in wanting]
    return {each.session.key: each.count for each in StepPlanner(128, chunk_tokens).plan(wants)}


def _of(verifier: str, count: int, pending: int = 1) -> list[Wanting]:
    return [Wanting(verifier, _session(f"{verifier}{number}"), pending) for number in range(count)]


def _shares(planner: StepPlanner, *wanting: Wanting) -> Counter[str]:
    """Return each verifier's tokens in a step. The names of its sessions begin with its letter."""
    shares = Counter[str]()
    for each in planner.plan(wanting):
        shares[each.session.key[0]] += each.count
    return shares


def test_nobody_wants_nothing() -> None:
    assert StepPlanner(128, 8).plan([]) == []


@pytest.mark.parametrize(("modest", "left"), [(1, 7), (3, 5), (4, 4), (20, 4)])
def test_a_verifier_that_floods_gets_what_another_leaves(modest: int, left: int) -> None:
    wanting = [*_of("f", 60), *_of("m", modest)]
    assert _shares(StepPlanner(8, 8), *wanting) == {"f": left, "m": 8 - left}


def test_a_verifier_alone_gets_all_of_a_step() -> None:
    assert _shares(StepPlanner(8, 8), *_of("f", 60)) == {"f": 8}


def test_what_cannot_be_divided_evenly_is_given_in_turns() -> None:
    planner, total = StepPlanner(4, 8), Counter[str]()
    for _ in range(9):
        total += _shares(planner, *_of("a", 9), *_of("b", 9), *_of("c", 9))
    assert total == {"a": 12, "b": 12, "c": 12}


def test_a_verifier_is_owed_nothing_for_the_time_when_it_wanted_nothing() -> None:
    planner = StepPlanner(4, 8)
    for _ in range(5):
        _shares(planner, *_of("f", 9))
    assert _shares(planner, *_of("f", 9), *_of("m", 9)) == {"f": 2, "m": 2}


def test_long_prompts_of_one_verifier_leave_the_others_their_share() -> None:
    assert _shares(StepPlanner(8, 16), *_of("f", 6, pending=40), *_of("m", 1, pending=6)) == {"f": 10, "m": 6}


def test_of_one_verifier_those_go_first_that_were_asked_for_first() -> None:
    wanting = _of("a", 3)
    for at, each in enumerate(reversed(wanting)):
        each.session.asked_at = at
    planned = StepPlanner(2, 8).plan(wanting)
    assert [each.session.key for each in planned] == ["a2", "a1"]


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
