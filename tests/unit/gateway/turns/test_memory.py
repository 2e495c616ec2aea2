"""The memory of a generation is free at its end, without a run of the garbage collector."""

import gc
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest

from gateway.turns.broadcast import Broadcast
from gateway.turns.events import OutputRound
from gateway.turns.transcript import Transcript
from tests.support.gateway_fakes import until
from tests.unit.gateway.turns.generation_stage import Stage

Left = Callable[[], list[int]]


def parts() -> list[int]:
    """Return the ids of the large parts of generations in this process."""
    # isinstance would ask every object of the process for its class, and some warn.
    return [id(each) for each in gc.get_objects() if type(each) in {Transcript, Broadcast}]


@pytest.fixture
def left() -> Iterator[Left]:
    """Yield a function that returns what is left of the test's generations, while nothing is collected."""
    gc.collect()
    gc.disable()
    others = set(parts())
    yield lambda: [each for each in parts() if each not in others]
    gc.enable()


@pytest.mark.parametrize("n", [1, 4])
async def test_a_finished_generation_leaves_nothing(n: int, left: Left) -> None:
    await Stage().run(n=n)
    await until(lambda: not left())


@pytest.mark.parametrize("n", [1, 4])
async def test_nor_does_one_that_its_reader_left(n: int, left: Left) -> None:
    async with aclosing(Stage().stream(n=n)) as events:
        async for event in events:
            if isinstance(event, OutputRound):
                break
        assert left()
    await until(lambda: not left())
