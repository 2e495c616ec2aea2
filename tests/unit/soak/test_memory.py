"""The soak's verdict: growth after the warm-up counts; growth within it and noise do not."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.soak.memory import MIB, Memory, grown
from tests.soak.soak import Plan, Soaked

PLAN = Plan(seconds=600, warm=200, every=10, rate=2, seed=1, bound=1.0)


def memory(per_minute: float, warming: float = 0.0) -> Memory:
    """Return the memory of a process that grows by this many MiB per minute, faster before 200 s, with 2 MiB noise."""
    made = Memory("verifier", 1)
    for second in range(0, 600, 10):
        size = 500 + per_minute * second / 60 + warming * min(second, 200) / 60 + second % 3
        made.samples.append((float(second), round(size * MIB)))
    return made


@pytest.mark.parametrize(("per_minute", "warming", "faults"), [(0.0, 0.0, 0), (0.0, 90.0, 0), (1.5, 0.0, 1)])
def test_growth_after_the_warm_up_counts(per_minute: float, warming: float, faults: int) -> None:
    assert len(grown([memory(per_minute, warming)], PLAN.warm, PLAN.bound)) == faults


def test_the_slope_is_in_mib_a_minute() -> None:
    assert memory(3.0).slope(200) == pytest.approx(3.0, abs=0.1)


def test_keys_that_stay_and_answers_that_are_not_whole_are_faults() -> None:
    sound = Soaked(PLAN, [memory(0.0)], Counter({"200": 5, "429": 1}), keys=10, left=0)
    assert not sound.faults
    assert replace(sound, left=1).faults == ["1 of 10 keys are left in the stores"]
    assert replace(sound, answers=Counter({"200": 5, "200 not whole": 2})).faults == ["2 answers: 200 not whole"]
    assert replace(sound, answers=Counter()).faults == ["no answer"]
