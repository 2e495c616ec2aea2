"""Masks are computed beside the passes: an expensive grammar delays neither a pass nor a cheap grammar."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.verifier_service.passes.scheduling import admitted, row, scheduling
from tests.unit.verifier_service.verifier_fakes import TableEngine, make_row
from verifier_service.backends.batch_plan import Row
from verifier_service.passes.mask_lanes import MaskLanes

pytestmark = pytest.mark.asyncio


class WrittenGrammar:
    """A grammar that allows everything, whose masks take as long as a test decides."""

    def __init__(self, seconds: float = 0.0, *, held: bool = False) -> None:
        self.seconds = seconds
        self.expensive = seconds > 0.002
        self.go = threading.Event()
        self.began = threading.Event()
        self.asked = 0
        self.on_masks: Callable[[], None] = lambda: None
        if not held:
            self.go.set()

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        self.asked += 1
        self.began.set()
        self.on_masks()
        assert self.go.wait(60)
        return [None] * (len(drafts) + 1)


def grammatical(name: str, grammar: WrittenGrammar) -> Row:
    state: Any = grammar
    return replace(make_row(name, (3,)), grammar=state)


@contextmanager
def lanes() -> Iterator[tuple[MaskLanes, asyncio.Event]]:
    changed = asyncio.Event()
    made = MaskLanes(changed.set)
    try:
        yield made, changed
    finally:
        made.close()


async def known(lanes: MaskLanes, changed: asyncio.Event, row: Row) -> None:
    while lanes.waits(row):
        changed.clear()
        if lanes.waits(row):
            await changed.wait()


async def test_a_row_waits_until_its_masks_are_known() -> None:
    grammar = WrittenGrammar(held=True)
    with lanes() as (made, changed):
        asked = grammatical("a", grammar)
        assert made.begin(asked)
        assert made.waits(asked)
        assert made.soon
        grammar.go.set()
        await known(made, changed, asked)
        assert not made.soon


async def test_a_row_without_a_verdict_or_a_grammar_does_not_wait() -> None:
    with lanes() as (made, _):
        assert not made.begin(make_row("a"))
        assert not made.begin(replace(grammatical("b", WrittenGrammar()), tokens=(3, 4, 5)))


async def test_cheap_masks_do_not_wait_for_expensive_ones() -> None:
    first, order = WrittenGrammar(1.0, held=True), list[str]()
    with lanes() as (made, changed):
        made.begin(grammatical("first", first))
        await asyncio.get_running_loop().run_in_executor(None, first.began.wait)
        rows = [grammatical(name, WrittenGrammar(seconds)) for name, seconds in (("dear", 0.5), ("less", 0.01))]
        for each in rows:
            grammar: Any = each.grammar
            grammar.on_masks = lambda name=each.kv_name: order.append(name)
            made.begin(each)
        assert not made.soon, "no row waits for these"
        cheap = grammatical("cheap", WrittenGrammar(0.001))
        made.begin(cheap)
        await known(made, changed, cheap)
        assert not order
        first.go.set()
        for each in rows:
            await known(made, changed, each)
    assert order == ["less", "dear"]


async def test_masks_of_a_sequence_that_ended_are_not_begun() -> None:
    first, second = WrittenGrammar(1.0, held=True), WrittenGrammar(1.0)
    with lanes() as (made, changed):
        made.begin(grammatical("first", first))
        made.begin(grammatical("second", second))
        made.forget("second")
        last = grammatical("last", WrittenGrammar(2.0))
        made.begin(last)
        first.go.set()
        await known(made, changed, last)
    assert not second.asked


async def test_a_grammar_that_fails_waits_no_more() -> None:
    grammar = WrittenGrammar()
    grammar.on_masks = lambda: 1 / 0  # type: ignore[assignment,return-value]
    with lanes() as (made, changed):
        failing = grammatical("a", grammar)
        made.begin(failing)
        await known(made, changed, failing)


@pytest.mark.parametrize("seconds", [0.0, 1.0], ids=["cheap as far as is known", "expensive"])
async def test_passes_go_on_while_masks_are_computed(seconds: float) -> None:
    grammar = WrittenGrammar(seconds, held=True)
    async with scheduling(TableEngine()) as loop, admitted(loop, "other", 1), admitted(loop, "a", 1):
        verdict = loop.verify(grammatical("a", grammar))
        for _ in range(3):
            await loop.verify(row("other"))
        assert not verdict.done()
        grammar.go.set()
        assert await verdict is not None
    assert not loop.engine_loop._masks.soon
