"""The controller's use of two groups: passes from which it learns about them, and when it keeps one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.clock import Clock
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.costs import DrafterTimes, PassSample


def _grouping(fixed: int | None, prompt: int) -> float | None:
    """Return the gain of two groups for 8 sessions whose drafts take half as long as a pass."""
    clock = Clock()
    speculation = BatchSpeculation(4, 64, lambda: DrafterTimes(0.01), clock, lambda: 0.0, groups="auto")
    sessions = [speculation.session(lambda: "model", fixed) for _ in range(8)]
    for turn in range(100):
        for session in sessions:
            session.gamma()
        speculation.drafting = True
        groups = speculation.groups
        rows, gap = 8 // groups, 0.05 if groups == 1 else 0.0
        read = prompt if turn >= 8 else 0
        computed = rows * (2 + turn % 3)
        started, seconds = clock.now + gap, 0.003 * computed + 0.001 * read
        clock.now = started + seconds
        sample = PassSample(rows, 8, computed + read, 2 * rows, rows, started, seconds, True, read, int(read > 0))
        speculation.passed(replace(sample, groups=groups))
    return speculation.report().grouping


@pytest.mark.parametrize("prompt", [0, 64])
def test_two_groups_are_found_to_be_faster_where_drafts_take_long(prompt: int) -> None:
    assert (_grouping(None, prompt) or 0.0) > 1.2


def test_rounds_with_drafts_of_others_do_not_show_what_two_groups_bring() -> None:
    assert _grouping(3, prompt=0) is None


@pytest.mark.parametrize(("silent", "groups"), [(0, 2), (3, 2), (4, 1), (8, 1)])
def test_there_is_one_group_where_no_more_than_half_of_the_sessions_draft(silent: int, groups: int) -> None:
    speculation = BatchSpeculation(4, 64, lambda: DrafterTimes(0.01), Clock(), lambda: 0.0, groups=2)
    sources: list[Callable[[], str | None]] = [lambda: None] * silent + [lambda: "model"] * (8 - silent)
    for session in [speculation.session(source) for source in sources]:
        session.gamma()
    assert speculation.groups == 1  # nothing drafts before passes have been measured
    speculation.drafting = True
    assert speculation.groups == groups
