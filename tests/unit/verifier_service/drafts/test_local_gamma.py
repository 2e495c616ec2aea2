"""Sources of the verifier draft if that is known to pay, and find out at low cost whether it does."""

import random

import pytest

from verifier_service.drafts.local_gamma import LocalAcceptance, LocalGamma, SourceWorth

MOST = 16


def session(acceptance: LocalAcceptance, beta: float, *, ends_itself: bool = False) -> LocalGamma:
    return LocalGamma(acceptance, "ngram", lambda: beta, MOST, ends_itself=ends_itself)


def run(gamma: LocalGamma, alpha: float, rounds: int, dice: random.Random) -> int:
    """Return the number of drafts made in these rounds."""
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
def test_a_source_whose_drafts_end_by_themselves_is_asked_for_all_or_none(alpha: float, drafted: int) -> None:
    acceptance, dice = LocalAcceptance(), random.Random(1)
    gamma = session(acceptance, beta=0.3, ends_itself=True)
    run(gamma, alpha, 50, dice)
    assert gamma.gamma() == drafted


def priced(price: float, rounds: int, accepted: int) -> SourceWorth:
    """Return a source at this price per token, after rounds of four drafts with this many accepted each."""
    worth = SourceWorth(lambda: price)
    for _ in range(rounds):
        worth.observe(4, accepted)
    return worth


def reads(worth: SourceWorth, goodput: float) -> int:
    """Return the number of sessions out of 80 for which a source reads."""
    return sum(worth.reads(goodput) for _ in range(80))


@pytest.mark.parametrize(("price", "accepted", "read"), [(0.3, 2, 80), (0.6, 2, 10), (0.1, 0, 10)])
def test_a_source_reads_where_its_drafts_bring_more_than_they_cost(price: float, accepted: int, read: int) -> None:
    assert reads(priced(price, 5000, accepted), goodput=100.0) == read


def test_the_faster_a_batch_is_the_more_a_source_must_bring_to_be_read_for() -> None:
    worth = SourceWorth(lambda: 0.0)
    for place in range(20_000):  # one token in five rounds
        worth.observe(*((1, 1) if place % 5 == 0 else (0, 0)))
    assert reads(worth, goodput=5000.0) == 80
    assert reads(worth, goodput=10_000.0) == 10


def test_a_source_that_brings_less_than_run_ahead_passes_is_hardly_read() -> None:
    worth = SourceWorth(lambda: 0.0)
    for place in range(20_000):  # one token in twenty rounds
        worth.observe(*((1, 1) if place % 20 == 0 else (0, 0)))
    assert reads(worth, goodput=100.0) == 10


def test_a_source_that_has_become_worth_it_is_found_out() -> None:
    worth = priced(0.5, 5000, 0)
    assert reads(worth, goodput=1000.0) == 10
    for _ in range(2000):
        worth.observe(4, 4)
    assert reads(worth, goodput=1000.0) == 80


@pytest.mark.parametrize(("every", "slight"), [(100, True), (3, False)])
def test_rounds_without_a_draft_count(every: int, slight: bool) -> None:
    worth = SourceWorth(lambda: 0.5)
    for place in range(20_000):
        worth.observe(*((1, 1) if place % every == 0 else (0, 0)))
    assert worth.is_slight is slight
    assert (reads(worth, goodput=1000.0) == 10) is slight


def test_few_rounds_outweigh_the_prior_worth_of_a_source() -> None:
    assert not priced(0.5, 0, 0).is_slight
    assert priced(0.1, 400, 0).is_slight
