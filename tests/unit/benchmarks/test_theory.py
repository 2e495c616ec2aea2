"""The formulas of the paper, compared with its tables and with generated counts."""

import pytest

from benchmarks.theory import ahead, operations_factor, speedup


@pytest.mark.parametrize(("alpha", "gamma", "factor"), [(0.6, 2, 1.53), (0.7, 3, 1.58), (0.8, 2, 1.23), (0.8, 5, 1.63)])
def test_the_operations_factor_of_a_free_drafter_is_that_of_table_1(alpha: float, gamma: int, factor: float) -> None:
    assert operations_factor(alpha, gamma, 0.0) == pytest.approx(factor, abs=0.005)


def test_a_drafters_own_operations_count() -> None:
    assert operations_factor(0.8, 5, 0.1) == pytest.approx(operations_factor(0.8, 5, 0.0) * 6.5 / 6.0)


@pytest.mark.parametrize("gamma", [1, 4])
def test_drafting_ahead_is_worth_nothing_at_alpha_0_and_most_at_1(gamma: int) -> None:
    assert ahead(0.0, gamma, 0.1, 0.2, 0.03) == pytest.approx(speedup(0.0, gamma, 0.1, 0.2, 0.03))
    assert ahead(1.0, gamma, 0.1, 0.2, 0.03) == pytest.approx((gamma + 1) / (1 + gamma * 0.03))


def test_what_is_not_drafted_when_the_pass_is_over_is_waited_for() -> None:
    assert ahead(1.0, 4, 0.5, 0.0, 0.0) == pytest.approx(5 / 2)
