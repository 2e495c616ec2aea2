"""Passes of a target in another process follow one another there, and sequences join and leave between them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.unit.verifier_service.verifier_fakes import continuation, make_row
from tests.unit.verifier_service.vllm.remote_pair import Pair
from verifier_service.backends.batch_plan import Outcome, Row
from verifier_service.backends.model_step import ModelStep


def test_passes_follow_one_another_until_nobody_has_asked(pair: Pair) -> None:
    pair.admit("a")
    first = replace(make_row("a", (3,)), runs_ahead=True)
    last = pair.run(first)
    ((step, (second,)),) = pair.passes
    assert first in step.results
    assert tuple(second.tokens) == (3, *continuation(3, 1))
    outcome = last.results[second]
    assert isinstance(outcome, Outcome)
    assert outcome.verdict.tokens == continuation(3, 2)[1:]


@pytest.mark.parametrize(("stopped", "passes"), [(False, 2), (True, 1)])
def test_what_is_asked_and_what_stops_is_read_from_shared_memory(stopped: bool, passes: int, pair: Pair) -> None:
    pair.admit("a")
    pair.remote.flags.ask(replace(make_row("a", (3, 10))))  # the row after the next one, before it is in progress
    if stopped:
        pair.remote.flags.stop()
    pair.run(replace(make_row("a", (3,)), runs_ahead=True))
    assert len(pair.passes) == passes - 1 + (not stopped)


def test_a_row_sent_again_before_its_request_is_not_followed(pair: Pair) -> None:
    pair.admit("a")
    row = replace(make_row("a", (3,)), runs_ahead=True, prefetched=True)
    assert row in pair.run(row).results
    assert pair.passes == []


def newcomer(name: str) -> Row:
    return replace(make_row(name, (5,), 0, limit=200), runs_ahead=True)


class Asking:
    """Requests every row in progress, and runs an action after the first step."""

    def __init__(self, pair: Pair, at_first: Callable[[], None] = lambda: None) -> None:
        self.pair, self.at_first = pair, at_first
        self.steps: list[ModelStep] = []

    def run(self, *rows: Row) -> None:
        self.steps.append(self.pair.remote.run((), rows, self._passed))

    def _passed(self, step: ModelStep, following: Sequence[Row]) -> None:
        self.steps.append(step)
        for row in following:
            if row.prefetched and row.kv_name in self.pair.remote._sent:  # the step may include an ended sequence
                self.pair.remote.flags.ask(row)
        if len(self.steps) == 1:
            self.at_first()

    def tokens(self, name: str) -> tuple[int, ...]:
        results = (item for step in self.steps for item in step.results.items())
        outcomes = [result for row, result in results if row.kv_name == name and isinstance(result, Outcome)]
        return tuple(token for outcome in outcomes for token in outcome.verdict.tokens)


def test_who_comes_and_who_ends_in_a_run_is_taken_between_two_passes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.admit("a", "c")
    monkeypatch.setattr(pair.model.flags, "asked", lambda _: True)

    def change() -> None:
        pair.remote.join((), [newcomer("b")])
        pair.remote.join(["c"], ())

    asking = Asking(pair, change)
    asking.run(*(replace(make_row(name, (3,), limit=200), runs_ahead=True) for name in "ac"))
    assert asking.tokens("a") == continuation(3, 199)
    assert asking.tokens("b") == continuation(5, 199)
    assert set(pair.engine.held) == {"a", "b"}
    assert pair.remote._joining == {}


def test_what_comes_after_the_last_step_waits_for_the_next_order(pair: Pair) -> None:
    pair.admit("a", "c")
    pair.remote.join(["c"], [newcomer("b"), newcomer("d")])
    own, asking = newcomer("d"), Asking(pair)
    asking.run(own, replace(make_row("a", (3,)), runs_ahead=True))
    assert own in asking.steps[0].results
    assert asking.tokens("b")
    assert set(pair.engine.held) == {"a", "b", "d"}
    assert pair.remote._joining == {}


def test_a_row_that_joined_and_whose_sequence_ended_is_forgotten(pair: Pair) -> None:
    pair.admit("a")
    pair.remote.join((), [newcomer("b")])
    pair.run(make_row("a", (3,)), ended=["b"])
    assert pair.remote._joining == {}
    assert set(pair.engine.held) == {"a"}


def test_who_ends_before_an_order_with_its_row_was_sent_has_no_part_in_it(pair: Pair) -> None:
    pair.admit("a", "b")
    pair.remote.join(["b"], ())
    left, row = make_row("b", (3,)), make_row("a", (3,))
    step = pair.run(left, row)
    assert (set(step.results), set(pair.engine.held), set(pair.remote._sent)) == ({row}, {"a"}, {"a"})
