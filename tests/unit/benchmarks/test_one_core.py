"""The comparison of engines on one core: the counted part of a batch, and the cells of available engines."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from benchmarks.peers.batch import Batch, Heard, timed
from benchmarks.run import Ask
from benchmarks.sections import one_core
from benchmarks.sections.one_core import Cell
from tests.support.clock import Clock


async def test_tokens_count_from_the_last_begin_of_an_answer_to_the_first_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("benchmarks.peers.batch.time", SimpleNamespace(perf_counter=clock))

    async def answer(asks: Sequence[Ask], heard: Heard) -> None:
        for number, tokens in ((0, [1]), (0, [2]), (1, [3]), (0, [4]), (1, [5, 6]), (0, [7])):
            clock.now += 2.0
            heard(number, tokens)

    batch = await timed(answer, [Ask((1,), 4), Ask((1,), 3)])
    assert batch.outputs == [[1, 2, 4, 7], [3, 5, 6]]
    assert batch.speed == pytest.approx(3 / 4.0)


def batch(speed: float, *outputs: Sequence[int]) -> Batch:
    return Batch(outputs, speed)


CELL = Cell(
    0.0,
    4,
    {
        "vLLM plain": [batch(10.0, [1, 2], [3, 4]), batch(20.0, [5], [6])],
        "native, off": [batch(12.0, [1, 2], [3, 9]), batch(22.0, [5], [6])],
    },
)


def test_a_cell_compares_engines_by_turns_and_their_greedy_answers() -> None:
    ratio = CELL.ratio("native, off")
    assert ratio is not None
    assert ratio.value == pytest.approx(1.15)
    assert CELL.ratio("ours on vLLM, off") is None
    assert CELL.rows()[1] == ["0", "4", "native, off", str(ratio), "17", "3 of 4"]


def test_a_figure_is_the_worst_cell_of_engines_that_are_there() -> None:
    slow = Cell(1.0, 16, {"vLLM plain": [batch(10.0)], "native, off": [batch(5.0)]})
    (figure,) = one_core._figures([CELL, slow])
    assert figure.name == "native, off / vLLM plain, worst of 2 cells"
    assert (figure.value[:4], figure.reached) == ("0.50", "no")
