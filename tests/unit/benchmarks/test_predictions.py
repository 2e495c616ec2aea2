"""Inputs of predictions: α counted over all γ, and costs in rounds of the predicted system."""

from pathlib import Path

import pytest

from benchmarks.costs import Costs
from benchmarks.drafters import Candidate
from benchmarks.run import Run
from benchmarks.sections.theory import Trial, acceptance
from benchmarks.theory import speedup

COSTS = Costs(step=0.010, more=0.001, judging=0.0005, draft={"small": 0.002})


def _run(tokens: int, rounds: int, accepted: int = 0, rejected: int = 0, pace: float = 100.0) -> Run:
    gaps = ((tokens - 1) / pace,)
    return Run((7,) * tokens, 1.0, rounds=rounds, accepted=accepted, rejected=rejected, gaps=gaps)


def test_acceptance_is_kept_over_judged_for_every_length() -> None:
    runs = {"0": [_run(9, 9)], "1": [_run(9, 6, accepted=3, rejected=3)], "4": [_run(9, 4, accepted=5, rejected=1)]}
    assert acceptance(runs, (1, 4)) == pytest.approx(8 / 12)


def test_a_drafter_that_never_guessed_has_no_acceptance() -> None:
    assert acceptance({"2": [_run(3, 3)]}, (2,)) == 0.0


def test_the_way_to_the_drafter_is_part_of_r_in_rounds_of_the_stack() -> None:
    assert COSTS.in_steps("small") == pytest.approx((0.2, 0.05, 0.1))
    assert COSTS.in_steps("small", step=0.020, trip=0.0035) == pytest.approx((0.1, 0.2, 0.05))


def test_a_row_holds_the_formula_against_the_runs() -> None:
    runs = {"0": [_run(11, 11, pace=100.0)], "3": [_run(11, 6, pace=150.0)]}
    trial = Trial(Candidate("small", "model", Path()), 0.0, 0.8, COSTS)
    (row,) = trial.predictions("process", (3,), runs, (COSTS.step, 0.0))
    assert row.predicted == pytest.approx(speedup(0.8, 3, 0.2, 0.05, 0.1))
    assert row.measured.value == pytest.approx(1.5)
    assert row.tokens == pytest.approx(2.0)
