"""The formulas of the paper, against its own tables and against counts that they generate."""

import pytest

from benchmarks.theory import acceptance, expected_tokens, operations_factor


@pytest.mark.parametrize(("alpha", "gamma", "factor"), [(0.6, 2, 1.53), (0.7, 3, 1.58), (0.8, 2, 1.23), (0.8, 5, 1.63)])
def test_the_operations_factor_of_a_free_drafter_is_that_of_table_1(alpha: float, gamma: int, factor: float) -> None:
    assert operations_factor(alpha, gamma, 0.0) == pytest.approx(factor, abs=0.005)


def test_a_drafters_own_operations_count() -> None:
    assert operations_factor(0.8, 5, 0.1) == pytest.approx(operations_factor(0.8, 5, 0.0) * 6.5 / 6.0)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("gamma", [1, 5])
def test_the_acceptance_is_the_one_that_explains_the_counts(alpha: float, gamma: int) -> None:
    accepted = round(1_000_000 * (expected_tokens(alpha, gamma) - 1.0))
    assert acceptance(1_000_000, accepted, gamma) == pytest.approx(alpha, abs=1e-4)


def test_acceptance_reaches_both_ends() -> None:
    assert acceptance(10, 0, 3) == pytest.approx(0.0, abs=1e-9)
    assert acceptance(10, 30, 3) == pytest.approx(1.0, abs=1e-6)
