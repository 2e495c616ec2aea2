"""Two groups come to be where they are measured to be faster, and become one where they are not."""

import pytest

from verifier_service.batching.groups import Groups

SESSIONS = 16
BASE, TOKEN, DRAFTED = 0.02, 0.005, 0.06
"""Seconds of a pass, of each of its sessions beside that, and until drafts have come."""


def _one(base: float, token: float, drafted: float) -> tuple[int, float, float]:
    return SESSIONS, base + token * SESSIONS, drafted


def _two(base: float, token: float, drafted: float) -> tuple[int, float, float]:
    """Drafts are made during the pass of the other group."""
    half = base + token * SESSIONS / 2
    return SESSIONS // 2, half, max(drafted - half, 0.0)


def _run(groups: Groups, passes: int, base: float, token: float, drafted: float) -> list[int]:
    """The number of groups in each pass."""
    counts = []
    for _ in range(passes):
        counts.append(groups.count)
        groups.observe(*(_one if groups.count == 1 else _two)(base, token, drafted))
    return counts


def test_two_groups_are_found_where_a_pass_is_bound_by_computing() -> None:
    groups = Groups("auto")
    counts = _run(groups, 400, BASE, TOKEN, DRAFTED)
    assert counts[0] == 1
    assert counts[60:].count(2) > 0.95 * len(counts[60:])
    assert groups.gain == pytest.approx((0.10 + 0.06) / (2 * 0.06))


def test_one_group_stays_where_a_pass_takes_the_same_for_half_of_the_sessions() -> None:
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


@pytest.mark.parametrize("setting", [1, 2])
def test_a_setting_holds(setting: int) -> None:
    assert set(_run(Groups(setting), 400, BASE, TOKEN, DRAFTED)) == {setting}
