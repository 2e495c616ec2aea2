"""Two groups form if measurements show them to be faster, and merge if they are not."""

import pytest

from verifier_service.speculation.costs import PassSample
from verifier_service.speculation.groups import Groups

SESSIONS = 16
BASE, TOKEN, DRAFTED = 0.02, 0.005, 0.06
"""Seconds of a pass without sessions, additional seconds per session, and seconds until drafts arrive."""


TOKENS = 3
"""Tokens committed by a verdict on a draft."""


def _pass(groups: int, rows: int, drafting: int, committed: int, seconds: float) -> PassSample:
    return PassSample(rows, SESSIONS, rows, committed, drafting, 0.0, seconds, follows=True, groups=groups)


def _observe(groups: Groups, base: float, token: float, drafted: float, longer: int = 0) -> None:
    """Observe a pass. With two groups, drafts are made during the other group's pass and may be `longer`."""
    rows = SESSIONS // groups.count
    seconds = base + token * rows
    gap = drafted if groups.count == 1 else max(drafted - seconds, 0.0)
    tokens = rows * (TOKENS if groups.count == 1 else TOKENS + longer)
    groups.observe(_pass(groups.count, rows, rows, tokens, seconds), seconds, gap)


def _run(groups: Groups, passes: int, base: float, token: float, drafted: float, longer: int = 0) -> list[int]:
    """Return the number of groups in each pass."""
    counts = []
    for _ in range(passes):
        counts.append(groups.count)
        _observe(groups, base, token, drafted, longer)
    return counts


def test_two_groups_are_found_where_a_pass_is_bound_by_computing() -> None:
    groups = Groups("auto")
    counts = _run(groups, 400, BASE, TOKEN, DRAFTED)
    assert counts[0] == 1
    assert counts[60:].count(2) > 0.95 * len(counts[60:])
    assert groups.gain == pytest.approx((0.10 + 0.06) / (2 * 0.06))


def test_one_group_stays_where_half_of_the_sessions_take_a_whole_pass() -> None:
    groups = Groups("auto")
    counts = _run(groups, 4000, 0.1, 0.0, DRAFTED)
    assert counts.count(2) < 0.03 * len(counts)
    assert counts[2000:].count(2) < 0.015 * 2000
    assert groups.gain is not None
    assert groups.gain < 1.0


def test_nothing_is_tried_where_drafts_are_there_at_once() -> None:
    assert set(_run(Groups("auto"), 400, BASE, TOKEN, 0.001)) == {1}


def test_two_groups_dissolve_when_the_costs_change() -> None:
    groups = Groups("auto")
    _run(groups, 400, BASE, TOKEN, DRAFTED)
    assert groups.count == 2
    counts = _run(groups, 3000, 0.1, 0.0, 0.01)
    assert counts[-1] == 1
    assert set(counts[-200:]) == {1}


def test_both_trials_have_about_as_many_verdicts() -> None:
    """A trial with as many passes of one group as of two would take twice the time if one group is slower."""
    groups = Groups("auto")
    counts = _run(groups, 1000, BASE, TOKEN, DRAFTED)
    first = counts.index(2)
    back = counts.index(1, first)
    trial_of_one = counts.index(2, back) - back
    losing = _run(Groups("auto"), 400, 0.1, 0.0, DRAFTED)
    trial_of_two = losing.index(1, losing.index(2)) - losing.index(2)
    assert 0.5 * trial_of_two <= trial_of_one <= 0.67 * trial_of_two


@pytest.mark.parametrize("setting", [1, 2])
def test_a_setting_holds(setting: int) -> None:
    assert set(_run(Groups(setting), 400, BASE, TOKEN, DRAFTED)) == {setting}


def test_tokens_count_and_not_verdicts() -> None:
    """Two groups have a fifth fewer verdicts here, and each verdict commits two thirds more tokens."""
    base = 0.1
    assert _run(Groups("auto"), 400, base, 0.001, 0.1)[-1] == 1
    assert _run(Groups("auto"), 400, base, 0.001, 0.1, longer=2)[-1] == 2


def test_passes_of_other_groups_or_with_few_drafts_teach_nothing() -> None:
    groups = Groups("auto")
    for _ in range(200):
        groups.observe(_pass(2, 8, 8, 24, 0.06), 0.06, 0.0)
        groups.observe(_pass(1, 16, 8, 32, 0.1), 0.1, DRAFTED)
    assert groups.count == 1
    assert groups.gain is None
    _run(groups, 20, BASE, TOKEN, DRAFTED)
    assert groups.count == 2


def test_a_trial_that_errs_is_outweighed_by_those_after_it() -> None:
    groups = Groups("auto")
    while groups.count == 1:
        _observe(groups, BASE, TOKEN, DRAFTED)
    while groups.count == 2:
        groups.observe(_pass(2, 8, 8, 16, 0.06), 0.06, 0.0)  # a third fewer tokens by chance
    assert groups.gain is not None
    assert groups.gain < 1.0
    assert _run(groups, 400, BASE, TOKEN, DRAFTED)[-1] == 2


def test_a_trial_without_a_token_tells_nothing() -> None:
    groups = Groups("auto")
    while groups.count == 1:
        _observe(groups, BASE, TOKEN, DRAFTED)
    while groups.count == 2:
        groups.observe(_pass(2, 8, 8, 0, 0.06), 0.06, 0.0)
    assert groups.gain is None
