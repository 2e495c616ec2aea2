"""Costs estimated from measurements equal the costs that generated them."""

import pytest

from specdec.planning.allotment import RoundSeconds
from specdec.planning.line import Line
from verifier_service.speculation.costs import BatchCosts, DrafterTimes, PassSample

SILENT = DrafterTimes(None)


def test_a_line_is_found_from_points_of_different_sizes() -> None:
    line = Line()
    for x in (1, 4, 2, 6, 3, 5) * 30:
        line.observe(x, 0.010 + 0.001 * x)
    assert line.fit(0.0, 0.5) == pytest.approx((0.010, 0.001), rel=0.02)


def test_points_of_one_size_leave_the_assumed_slope() -> None:
    line = Line()
    for _ in range(10):
        line.observe(2, 0.02)
    assert line.fit(0.003, 1.0) == pytest.approx((0.014, 0.003))


@pytest.mark.parametrize("slope", [-1.0, 100.0])
def test_neither_base_nor_slope_falls_below_0(slope: float) -> None:
    line = Line()
    line.observe(2, 0.02)
    base, fitted = line.fit(slope, 1.0)
    assert base >= 0.0
    assert fitted >= 0.0
    assert base + 2 * fitted == pytest.approx(0.02)


def test_the_costs_of_a_batch_are_those_that_were_measured() -> None:
    costs = BatchCosts()
    for gamma in (0, 2, 4, 0, 3, 1) * 60:
        costs.observe(4 + 4 * gamma, 0.010 + 0.001 * (4 + 4 * gamma))
        costs.observe_gap(gamma, 0.002 + (0.003 + 0.001 * gamma if gamma else 0.0))
    measured = costs.of(4, DrafterTimes(0.001, 0.003))
    assert measured.base == pytest.approx(0.012, rel=0.05)
    assert measured.token == pytest.approx(0.001, rel=0.05)
    assert (measured.wait, measured.draft) == pytest.approx((0.003, 0.001), rel=0.05)


def test_a_machine_that_has_become_slower_does_not_make_drafts_cheap() -> None:
    costs = BatchCosts()
    for gamma in (0, 2) * 40:
        costs.observe(16 + 16 * gamma, 0.010 + 0.0005 * (16 + 16 * gamma))
    for slower in (1.2, 1.6, 2.0):
        for _ in range(60):
            costs.observe(16, slower * (0.010 + 0.0005 * 16))
    measured = costs.of(16, SILENT)
    assert measured.token == pytest.approx(2 * 0.0005, rel=0.15)
    assert measured.base + 16 * measured.token == pytest.approx(2 * 0.018, rel=0.15)


def test_before_any_wait_drafters_are_believed() -> None:
    costs = BatchCosts()
    costs.observe(1, 0.010)
    assert not BatchCosts().known
    assert costs.known
    told = costs.of(1, DrafterTimes(0.004, 0.02))
    assert (told.wait, told.draft) == (0.02, 0.004)


def test_before_anything_is_known_drafting_is_thought_to_be_cheap() -> None:
    assert BatchCosts().of(4, SILENT) == RoundSeconds(0.98, pytest.approx(0.005), 0.0, pytest.approx(0.1), measured=4)


def test_a_rate_follows_the_newest_points() -> None:
    line = Line()
    assert line.rate == 0.0
    line.observe(300, 3.0)
    assert line.rate == pytest.approx(100.0)
    for _ in range(500):
        line.observe(400, 1.0)
    assert line.rate == pytest.approx(400.0, rel=0.01)


def test_before_two_pass_sizes_are_known_a_token_costs_that_of_a_prompt() -> None:
    costs = BatchCosts()
    for _ in range(3):
        costs.observe(32, 0.036)
    assert costs.of(32, SILENT).token < 0.0001
    for _ in range(3):
        costs.without_prompts(PassSample(32, 32, 95, 32, 0, 0.0, 0.036 + 63 * 0.0005, True, 63, 1))
    assert costs.of(32, SILENT).token == pytest.approx(0.0005)


def test_long_drafts_cost_half_of_prompts_where_short_ones_cost_nothing() -> None:
    costs = BatchCosts()
    for tokens in [4, 4, 5, 4, 6] * 40:
        costs.observe(tokens, 0.013)
    assert costs.of(4, SILENT).token < 0.0001
    costs.without_prompts(PassSample(4, 4, 184, 4, 0, 0.0, 0.013 + 180 * 0.001, True, 180, 4))
    found = costs.of(4, SILENT)
    assert found.token < 0.00015
    assert 4.5 < found.measured < 6.0
    assert found.token + found.beyond == pytest.approx(0.0005, rel=0.1)
    assert costs.of(9, SILENT).measured == 9  # a plain round of more sessions is no long draft
