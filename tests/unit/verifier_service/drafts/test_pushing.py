"""Chains are pushed where measurements show that they pay."""

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.verifier_service.verifier_fakes import make_link
from verifier_service.drafts.link import OUTCOMES, MeasuredLink, PushChoice, saved_share
from verifier_service.speculation.costs import DraftedRounds

GUESSED_WELL, GUESSED_WORSE = 0.93, 0.81
"""Acceptance at 4.3 and at 3.4 tokens per round of four drafts."""
GAMMA = 4
PASS, STEP = 0.060, 0.004


def chosen(
    round_trip: float, alpha: float, step: float = STEP, sessions: int = 1, choice: PushChoice | None = None
) -> int:
    link = MeasuredLink(round_trip, step, sessions)
    return (choice or PushChoice()).outcomes(link, DraftedRounds(alpha, PASS), GAMMA)


@pytest.mark.parametrize(
    ("round_trip", "outcomes"),
    [(0.0, 0), (0.001, 0), (0.005, 0), (0.020, OUTCOMES), (0.050, OUTCOMES)],
)
def test_it_depends_on_the_round_trip(round_trip: float, outcomes: int) -> None:
    assert chosen(round_trip, GUESSED_WORSE) == outcomes


@pytest.mark.parametrize(("round_trip", "measured"), [(0.020, 0.13), (0.050, 0.15)])
def test_the_gain_is_about_what_the_benchmark_of_round_trips_measured(round_trip: float, measured: float) -> None:
    gain = saved_share(MeasuredLink(round_trip, STEP, 1), DraftedRounds(GUESSED_WORSE, PASS), GAMMA)
    assert gain == pytest.approx(measured, abs=0.05)


def test_where_drafting_ahead_is_nearly_always_right_nothing_is_pushed() -> None:
    link = MeasuredLink(0.050, STEP, 1)
    assert PushChoice().outcomes(link, DraftedRounds(GUESSED_WELL, 0.084), GAMMA) == 0


def test_a_drafter_without_time_pushes_nothing() -> None:
    assert chosen(0.020, GUESSED_WORSE, step=0.013) == 0
    assert chosen(0.020, GUESSED_WORSE, sessions=5) == 0


def test_before_anything_is_measured_nothing_is_pushed() -> None:
    assert PushChoice().outcomes(MeasuredLink(0.0, STEP, 0), DraftedRounds(0.7, PASS), GAMMA) == 0
    assert PushChoice().outcomes(MeasuredLink(0.020, 0.0, 0), DraftedRounds(0.7, PASS), GAMMA) == 0
    assert PushChoice().outcomes(MeasuredLink(0.020, STEP, 0), DraftedRounds(), GAMMA) == 0


def test_a_choice_that_has_begun_to_push_goes_on_a_little_below_its_limits() -> None:
    choice, below = PushChoice(), 0.005
    assert chosen(below, GUESSED_WORSE, choice=choice) == 0
    assert chosen(0.020, GUESSED_WORSE, choice=choice) == OUTCOMES
    assert chosen(below, GUESSED_WORSE, choice=choice) == OUTCOMES
    assert chosen(0.002, GUESSED_WORSE, choice=choice) == 0
    assert chosen(below, GUESSED_WORSE, choice=choice) == 0


def test_a_link_asks_for_as_many_as_its_drafter_makes_and_says_so() -> None:
    registry = CollectorRegistry()
    link = make_link(registry)
    rounds = DraftedRounds(GUESSED_WORSE, PASS)
    link.connected("small", STEP, outcomes=6)
    assert link.wanted_outcomes(8, rounds, GAMMA) == 6
    assert link.wanted_outcomes("auto", rounds, GAMMA) == 0
    link.round_trip(0.020)
    assert link.wanted_outcomes("auto", rounds, GAMMA) == 6
    labels = {"address": link.address}
    assert registry.get_sample_value("specdec_drafter_outcomes", labels) == 6
    assert registry.get_sample_value("specdec_drafter_push_gain", labels) == pytest.approx(0.14, abs=0.01)
    link.gone()
    assert registry.get_sample_value("specdec_drafter_push_gain", labels) is None
