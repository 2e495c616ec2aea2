"""Ratios of paired runs, and the line fitted to a cost."""

import math

import pytest

from benchmarks.reports.statistics import Ratio, error_of_sums, paired, percentile, slope, spread


def test_a_slow_moment_that_meets_both_sides_leaves_the_ratio_alone() -> None:
    assert paired([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]) == Ratio(2.0, 2.0, 2.0)


def test_the_error_of_a_ratio_of_sums_is_what_its_pairs_differ_by() -> None:
    assert error_of_sums([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]) == 0.0
    assert error_of_sums([0.9, 1.1], [1.0, 1.0]) == pytest.approx(0.1)
    assert error_of_sums([1.0], [1.0]) == math.inf


def test_the_spread_is_the_middle_half() -> None:
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Ratio(3.0, 2.0, 4.0)
    assert spread([7.0]) == Ratio(7.0, 7.0, 7.0)


def test_a_percentile_is_a_sample() -> None:
    samples = [float(number) for number in range(1, 101)]
    assert (percentile(samples, 0.5), percentile(samples, 0.99), percentile(samples, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([3.0], 0.5) == 3.0


def test_the_slope_of_a_line_is_found() -> None:
    assert slope([1.0, 2.0, 3.0], [5.0, 7.0, 9.0]) == pytest.approx((3.0, 2.0))
