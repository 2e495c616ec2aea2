"""The cost of a source's guesses is the additional time of rounds with them."""

import pytest

from tests.unit.verifier_service.speculation.simulated_batch import SimulatedBatch, costs
from verifier_service.speculation.costs import GuessCosts, PassSample

ROWS, TOKEN = 16, 0.005


def sample(seconds: float, *, guessed: int = 0, rows: int = ROWS) -> PassSample:
    return PassSample(rows, rows, rows + guessed, rows, min(guessed, 1), 0.0, seconds, True)


def observe(guesses: GuessCosts, rounds: int, *, guessed: int = 4) -> None:
    """Observe rounds with and without guesses in turns: a guess costs 8 ms, and passes with one begin 6 ms later."""
    for _ in range(rounds):
        guesses.observe(sample(0.150), 0.0005, TOKEN)
        guesses.observe(sample(0.150 + 0.008 * guessed, guessed=guessed), 0.0065, TOKEN)


def test_a_guess_costs_what_a_token_does_until_more_is_known() -> None:
    guesses = GuessCosts()
    assert guesses.seconds(TOKEN) == TOKEN
    guesses.observe(sample(0.182, guessed=4), 0.0065, TOKEN)  # baseline of zero
    assert guesses.seconds(TOKEN) == TOKEN


def test_a_guess_costs_by_how_much_rounds_with_guesses_are_longer() -> None:
    guesses = GuessCosts()
    observe(guesses, 200)
    assert guesses.seconds(TOKEN) == pytest.approx(0.008 + 0.006 / 4, rel=0.05)


def test_other_numbers_of_rows_do_not_make_guesses_dearer() -> None:
    guesses = GuessCosts()
    observe(guesses, 200)
    for _ in range(100):
        guesses.observe(sample(0.150 - 4 * TOKEN + 0.032, guessed=4, rows=ROWS - 4), 0.0065, TOKEN)
    assert guesses.seconds(TOKEN) == pytest.approx(0.0095, rel=0.05)


def test_a_guess_costs_no_less_than_a_token() -> None:
    guesses = GuessCosts()
    for _ in range(100):
        guesses.observe(sample(0.150), 0.0, TOKEN)
        guesses.observe(sample(0.140, guessed=2), 0.0, TOKEN)
    assert guesses.seconds(TOKEN) == TOKEN


def test_guesses_that_have_become_too_dear_are_tried_again() -> None:
    guesses = GuessCosts()
    observe(guesses, 200)
    for _ in range(1500):
        guesses.observe(sample(0.150), 0.0005, TOKEN)
    assert guesses.seconds(TOKEN) < 1.2 * TOKEN


def rounds_with_guesses(batch: SimulatedBatch, rounds: int, gap: float, *, follows: bool) -> None:
    """Observe rounds without guesses and as many late ones with four guessed tokens, two of them accepted."""
    for _ in range(rounds):
        batch.run(1)
        for session in batch.sessions:
            session.gamma()
        started, seconds = batch.clock.now + gap, batch.costs.base + batch.costs.token * (ROWS + 4)
        batch.clock.now = started + seconds
        batch.speculation.passed(PassSample(ROWS, ROWS, ROWS + 4, ROWS + 2, 2, started, seconds, follows))


def test_the_price_of_a_guess_is_what_its_rounds_show() -> None:
    batch = SimulatedBatch([0.9] * ROWS, costs(ROWS, 0.05, 0.4, 0.1), source=None)
    rounds_with_guesses(batch, 300, 1.0, follows=False)  # other sessions than in the rounds before
    report = batch.speculation.report()
    assert report.price <= report.goodput * batch.costs.token
    rounds_with_guesses(batch, 300, 0.004, follows=True)
    batch.clock.now += 2.0
    report = batch.speculation.report()
    assert report.price == pytest.approx(report.goodput * (batch.costs.token + 0.004 / 4), rel=0.1)
