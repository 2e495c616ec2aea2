"""A plan's lifetime is proportional to its cost, and ten times shorter while it leads to drafts."""

import pytest

from tests.support.clock import Clock
from verifier_service.speculation.controller import PlanPace


@pytest.mark.parametrize(("spent", "drafting", "holds"), [(0.0, False, 0.1), (0.002, False, 2.0), (0.002, True, 0.2)])
def test_a_plan_holds_by_what_its_thread_computed(spent: float, drafting: bool, holds: float) -> None:
    clock, computed = Clock(), Clock()
    pace = PlanPace(clock, computed)
    assert pace.over
    with pace.planning(drafting=drafting):
        computed.now += 1.0  # the first plan loads code
    clock.now = 0.11
    assert pace.over
    clock.now = 0.0
    with pace.planning(drafting=drafting):
        computed.now += spent
        clock.now += 0.005
    clock.now = 0.99 * holds
    assert not pace.over
    clock.now = 1.01 * holds
    assert pace.over
