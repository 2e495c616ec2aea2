"""Separate drafters compared with drafting in turns, with worked numbers."""

import pytest

from specdec.planning.placement import placement
from specdec.planning.sizing import Policy, RoundCosts

COSTS = RoundCosts(
    alpha=0.7, gamma=4, draft_step=0.003, verify_pass=0.025, plain_pass=0.020, draft_batch=32, verify_batch=32,
    round_trip=0.002,
)  # fmt: skip
FULL = Policy(verify_busy=1.0, draft_busy=1.0)


def test_a_worked_example() -> None:
    found = placement(COSTS, FULL)
    assert found.full == pytest.approx(1 + 4 * 3 / 25)
    assert found.alone == pytest.approx(37 / 39)
    assert found.drafters == pytest.approx(0.48)
    assert found.break_even == pytest.approx(1.0)
    assert found.full_for_money(0.1) == pytest.approx(1.48 / 1.048)


def test_a_drafter_may_cost_more_where_its_steps_hold_more_sessions() -> None:
    costs = RoundCosts(0.7, 4, 0.003, 0.025, 0.020, draft_batch=128, verify_batch=32)
    assert placement(costs, FULL).break_even == pytest.approx(4.0)
    assert placement(costs, FULL).full_for_money(4.0) == pytest.approx(1.0)
