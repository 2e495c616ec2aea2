"""A separate call reads its rounds from a queue, which holds the generation back while no round is read."""

import asyncio
from typing import Any

import pytest

from specdec.errors import InternalError
from specdec.sampling.params import FinishReason
from specdec.wire.generation import GenerationCall, Round
from tests.unit.verifier_service.verifier_fakes import make_call
from verifier_service.passes.readers import AHEAD, CallReader
from verifier_service.passes.sequence import Reader


class Written:
    """A generation that a test writes."""

    def __init__(self) -> None:
        self.credits: list[float] = []
        self.closed = 0
        self.reader: Reader | None = None

    def open(self, call: GenerationCall, reader: Reader, credit: float) -> "Written":
        self.reader = reader
        self.credits.append(credit)
        return self

    def grant(self, length: float) -> None:
        self.credits.append(length)

    def close(self) -> None:
        self.closed += 1

    def write(self, *lengths: int, last: bool = False) -> None:
        assert self.reader is not None
        for length in lengths:
            finish = FinishReason.LENGTH if last and length == lengths[-1] else None
            self.reader.add(Round(base_len=length, tokens=(1,), finish=finish))


def reading(service: Written) -> CallReader:
    generations: Any = service
    return CallReader(generations, make_call())


async def test_every_round_arrives_in_order_and_the_last_one_ends_it() -> None:
    service = Written()
    reader = reading(service)
    service.write(3, 4, 5, last=True)
    assert [done and done.base_len async for done in reader.rounds()] == [3, 4, 5]
    assert service.closed == 1


async def test_credit_comes_with_what_is_taken_and_not_with_what_is_made() -> None:
    service = Written()
    reader = reading(service)
    service.write(3, 4)
    rounds = reader.rounds()
    assert service.credits == [3 + AHEAD]
    await anext(rounds)
    await anext(rounds)
    assert service.credits == [3 + AHEAD, 4 + AHEAD]
    await rounds.aclose()


async def test_an_error_arrives_after_the_rounds_before_it() -> None:
    service = Written()
    rounds = reading(service).rounds()
    service.write(3)
    assert service.reader is not None
    service.reader.failed(InternalError("broken"))
    assert await anext(rounds)
    with pytest.raises(InternalError, match="broken"):
        await anext(rounds)
    assert service.closed


async def test_leaving_early_ends_the_generation() -> None:
    service = Written()
    rounds = reading(service).rounds()
    service.write(3)
    await anext(rounds)
    await rounds.aclose()
    assert service.closed


async def test_a_call_without_rounds_shows_that_it_goes_on() -> None:
    service = Written()
    rounds = reading(service).rounds(heartbeat=0.01)
    service.write(3, 4)
    shown = [await anext(rounds) for _ in range(5)]
    assert [done and done.base_len for done in shown] == [3, 4, None, None, None]
    await rounds.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "no task is left"
