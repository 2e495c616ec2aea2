"""Costs come out of measurements as they went in."""

import math

import pytest

from tests.clock import Clock
from verifier_service.batching.costs import DraftCost, MeasuredCosts, PassCost


def test_the_marginal_cost_of_a_token_is_found_from_passes_of_different_sizes() -> None:
    passes = PassCost()
    for gamma in (0, 3, 1, 5, 2, 4) * 10:
        passes.observe(rows=1, tokens=1 + gamma, seconds=0.010 + 0.001 * (1 + gamma))
    assert passes.step() == pytest.approx(0.011)
    assert passes.beta() == pytest.approx(1 / 11)


def test_passes_of_one_size_tell_the_step_and_leave_beta_at_its_prior() -> None:
    passes = PassCost()
    for _ in range(10):
        passes.observe(rows=2, tokens=2, seconds=0.02)
    assert passes.step() == pytest.approx(0.02)
    assert 0 < passes.beta() < 0.1


def test_before_any_pass_nothing_is_known() -> None:
    assert PassCost().step() is None


def test_waits_per_draft_are_measured() -> None:
    drafts = DraftCost(Clock())
    for _ in range(200):
        drafts.observe(4, 0.02)
    assert drafts.per_token(None) == pytest.approx(0.005)
    assert drafts.per_token(0.005) == pytest.approx(0.005)


def test_old_waits_fade_to_what_the_drafter_says() -> None:
    clock = Clock()
    drafts = DraftCost(clock)
    for _ in range(200):
        drafts.observe(4, 4.0)
    clock.now = 1000.0
    assert drafts.per_token(0.001) == pytest.approx(0.001)


def test_the_controller_follows_the_costs() -> None:
    clock_free = MeasuredCosts(gamma_max=8, draft_step=lambda: 0.001)
    for _ in range(10):
        clock_free.passes.observe(rows=1, tokens=1, seconds=0.1)
    assert clock_free.controller(None).gamma() > 3
    dear = MeasuredCosts(gamma_max=8, draft_step=lambda: 1.0)
    for _ in range(10):
        dear.passes.observe(rows=1, tokens=1, seconds=0.1)
    controller = dear.controller(None)
    for _ in range(3):
        controller.observe(4, 4)
    assert controller.gamma() == 0
    assert dear.controller(3).gamma() == 3


@pytest.mark.parametrize("gamma", [3, None])
def test_what_a_controller_observes_teaches_the_estimate_of_all_sessions(gamma: int | None) -> None:
    costs = MeasuredCosts(gamma_max=8, draft_step=lambda: None)
    for _ in range(500):
        costs.controller(gamma).observe(4, 0)
    assert costs.alpha < 0.1


def test_bad_sessions_do_not_keep_new_ones_from_trying() -> None:
    costs = MeasuredCosts(gamma_max=8, draft_step=lambda: None)
    for _ in range(500):
        costs.accepted(4, 0)
    assert costs.alpha < 0.1
    assert costs.controller(None).gamma() > 0


def test_a_wait_is_worth_the_plain_steps_that_the_drafts_would_save() -> None:
    costs = MeasuredCosts(gamma_max=8, draft_step=lambda: 0.001)
    assert costs.worth_waiting(0, 4) == math.inf
    for gamma in (0, 4, 2) * 20:
        costs.passes.observe(rows=1, tokens=1 + gamma, seconds=0.010 + 0.001 * gamma)
    for _ in range(2000):
        costs.accepted(4, 4)
    assert costs.worth_waiting(0, 4) == pytest.approx(0.010 * (5 - 1 - 4 * 0.1), rel=0.05)
    assert costs.worth_waiting(3, 4) == pytest.approx(0.010 * (1 - 0.1), rel=0.05)
    for _ in range(2000):
        costs.accepted(4, 0)
    assert costs.worth_waiting(0, 4) < 0.001


def test_the_prefill_rate_is_tokens_over_seconds_and_follows_the_newest() -> None:
    costs = PassCost()
    assert costs.prefill_rate() == 0.0
    costs.observe_prompt(300, 3.0)
    assert costs.prefill_rate() == pytest.approx(100.0)
    for _ in range(500):
        costs.observe_prompt(400, 1.0)
    assert costs.prefill_rate() == pytest.approx(400.0, rel=0.01)
    assert costs.step() is None
