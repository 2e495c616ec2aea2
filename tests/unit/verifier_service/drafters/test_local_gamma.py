"""Sources of the verifier draft where that pays for all that is known, and find out at little cost whether it does."""

import random

import pytest

from verifier_service.drafters.local_gamma import LocalAcceptance, LocalGamma

MOST = 16


def session(acceptance: LocalAcceptance, beta: float, *, ends_itself: bool = False) -> LocalGamma:
    return LocalGamma(acceptance, "ngram", lambda: beta, MOST, ends_itself=ends_itself)


def run(gamma: LocalGamma, alpha: float, rounds: int, dice: random.Random) -> int:
    """Drafts made in so many rounds."""
    made = 0
    for _ in range(rounds):
        drafted = gamma.gamma()
        accepted = next((step for step in range(drafted) if dice.random() >= alpha), drafted)
        gamma.observe(drafted, accepted)
        made += drafted
    return made


def test_a_new_session_begins_with_what_all_have_shown() -> None:
    acceptance, dice = LocalAcceptance(), random.Random(1)
    assert session(acceptance, beta=0.3).gamma() > 0
    for _ in range(20):
        run(session(acceptance, beta=0.3), 0.1, 20, dice)
    assert session(acceptance, beta=0.3).gamma() == 0
    assert session(acceptance, beta=0.01).gamma() > 0


def test_drafts_that_do_not_pay_are_one_token_in_a_hundred() -> None:
    acceptance, dice = LocalAcceptance(), random.Random(1)
    sessions = [session(acceptance, beta=0.3) for _ in range(16)]
    for each in sessions:
        run(each, 0.0, 100, dice)
    made = sum(run(each, 0.0, 1000, dice) for each in sessions)
    assert 0 < made <= 0.011 * 16 * 1000


def test_drafts_that_have_become_better_are_found_out() -> None:
    acceptance, dice = LocalAcceptance(), random.Random(1)
    for _ in range(10):
        run(session(acceptance, beta=0.3), 0.05, 50, dice)
    late = session(acceptance, beta=0.3)
    assert late.gamma() == 0
    run(late, 0.95, 4000, dice)
    assert late.gamma() > 2


@pytest.mark.parametrize(("alpha", "drafted"), [(0.05, 0), (0.95, MOST)])
def test_a_source_whose_drafts_end_by_themselves_is_asked_for_all_or_for_nothing(alpha: float, drafted: int) -> None:
    acceptance, dice = LocalAcceptance(), random.Random(1)
    gamma = session(acceptance, beta=0.3, ends_itself=True)
    run(gamma, alpha, 50, dice)
    assert gamma.gamma() == drafted
