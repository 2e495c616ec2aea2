"""Blocks are fetched when that is measured to be faster, and to measure it."""

import pytest

from gateway.kv.gate import Bandwidth, worth_restoring


@pytest.mark.parametrize(
    ("size", "bandwidth", "rate", "worth"),
    [
        (1000, 100.0, 99.0, True),
        (1000, 100.0, 101.0, False),
        (1000, 100.0, 100.0, False),
        (10**12, None, 1e6, True),
        (10**12, 1.0, 0.0, True),
    ],
)
def test_fetching_must_beat_computing_where_both_are_known(
    size: int, bandwidth: float | None, rate: float, worth: bool
) -> None:
    assert worth_restoring(1000, size, bandwidth, rate) is worth


def test_nothing_is_not_worth_fetching() -> None:
    assert not worth_restoring(0, 0, None, 0.0)


def test_bandwidth_follows_what_is_measured_and_is_forgotten_in_time() -> None:
    now = [0.0]
    bandwidth = Bandwidth(lambda: now[0])
    assert bandwidth.value is None
    bandwidth.observe(100, 1.0)
    assert bandwidth.value == 100.0
    bandwidth.observe(200, 1.0)
    assert bandwidth.value == pytest.approx(130.0)
    now[0] = 59.0
    assert bandwidth.value is not None
    now[0] = 61.0
    assert bandwidth.value is None
    bandwidth.observe(50, 1.0)
    assert bandwidth.value == 50.0
