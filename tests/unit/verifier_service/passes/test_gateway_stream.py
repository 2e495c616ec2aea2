"""One stream of a gateway: orders in, and one pass out for each iteration of the event loop."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.contextvars import get_contextvars

from specdec.errors import DeadlineExceeded, Draining, InternalError, QueueFull
from specdec.sampling.params import FinishReason
from specdec.serving.rpc.status import error_from_bytes
from specdec.wire.generation import GenerationCall, Round
from specdec.wire.passes import Opening, Orders, Pass
from tests.unit.verifier_service.verifier_fakes import make_call
from verifier_service.passes.gateway_stream import GatewayStream
from verifier_service.passes.sequence import Reader


class Scripted:
    """Generations whose rounds a test releases, as credit allows."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.fails: Exception | None = None
        self.refuses: Exception | None = None
        self.open_names: set[str] = set()
        self.seen: list[dict[str, Any]] = []

    def open(self, call: GenerationCall, reader: Reader, credit: float) -> "ScriptedSequence":
        self.seen.append(get_contextvars())
        if self.refuses is not None:
            raise self.refuses
        return ScriptedSequence(self, call, reader, credit)


class ScriptedSequence:
    """A scripted generation with one round in each iteration of the event loop."""

    def __init__(self, service: Scripted, call: GenerationCall, reader: Reader, credit: float) -> None:
        self._service = service
        self._call = call
        self._reader = reader
        self._credit = credit
        self._granted = asyncio.Event()
        service.open_names.add(call.session_id)
        self._task = asyncio.create_task(self._generate())

    async def _generate(self) -> None:
        call, service = self._call, self._service
        end = len(call.tokens) + call.max_tokens
        for length in range(len(call.tokens), end):
            await service.go.wait()
            await asyncio.sleep(0)
            while length >= self._credit:
                self._granted.clear()
                await self._granted.wait()
            if length + 1 == end and service.fails:
                self.fail(service.fails)
                return
            self._reader.add(
                Round(base_len=length, tokens=(1,), finish=FinishReason.LENGTH if length + 1 == end else None)
            )
        service.open_names.remove(call.session_id)

    def grant(self, length: float) -> None:
        self._credit = length
        self._granted.set()

    def fail(self, error: Exception) -> None:
        self.close()
        self._reader.failed(error)

    def close(self) -> None:
        self._service.open_names.discard(self._call.session_id)
        self._task.cancel()


class Gateway:
    """Sends a test's orders over a stream."""

    def __init__(self, generations: Scripted, heartbeat: float = 3600.0) -> None:
        self.orders: asyncio.Queue[Orders | None] = asyncio.Queue()
        self.stream = GatewayStream(generations, "/test", heartbeat)  # type: ignore[arg-type]
        self.passes = self.stream.passes(self._sent())

    async def _sent(self) -> AsyncIterator[Orders]:
        while (each := await self.orders.get()) is not None:
            yield each

    def order(self, *opens: Opening, cancels: tuple[int, ...] = (), **credits: int) -> None:
        self.orders.put_nowait(Orders(opens, cancels, {int(slot[1:]): value for slot, value in credits.items()}))

    async def next(self) -> Pass:
        return await anext(self.passes)

    async def slots(self) -> list[int]:
        return [slot for slot, _ in (await self.next()).rounds]


def opening(slot: int, name: str = "", credit: int = 100, max_tokens: int = 2, **metadata: str) -> Opening:
    return Opening(slot, make_call(session_id=name or f"s{slot}", max_tokens=max_tokens), credit, None, metadata)


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_ready_in_one_turn_is_one_pass() -> None:
    service = Scripted()
    gateway = Gateway(service)
    gateway.order(*(opening(slot, max_tokens=1) for slot in range(5)))
    waiting = asyncio.create_task(gateway.slots())
    await turns()
    assert not waiting.done()
    service.go.set()
    assert sorted(await waiting) == list(range(5))
    await gateway.passes.aclose()


async def test_without_credit_nothing_comes_and_other_readers_do_not_wait() -> None:
    service = Scripted()
    service.go.set()
    gateway = Gateway(service)
    gateway.order(opening(0, credit=5, max_tokens=50), opening(1, credit=100, max_tokens=50))
    counts = {0: 0, 1: 0}
    while counts[1] < 50:
        for slot in await gateway.slots():
            counts[slot] += 1
    assert counts[0] == 2, "three tokens of prompt, then two of credit"
    gateway.order(s0=100)
    while counts[0] < 50:
        for slot in await gateway.slots():
            counts[slot] += 1
    await gateway.passes.aclose()


async def test_a_peer_that_does_not_read_costs_no_more_than_its_credit() -> None:
    service = Scripted()
    service.go.set()
    gateway = Gateway(service)
    gateway.order(opening(0, credit=10, max_tokens=1000))
    await gateway.next()
    await turns(200)
    assert len((await gateway.next()).rounds) <= 7
    await gateway.passes.aclose()


async def test_a_silent_stream_says_that_it_lives() -> None:
    gateway = Gateway(Scripted(), heartbeat=0.01)
    gateway.order(opening(0))
    assert [await gateway.next() for _ in range(3)] == [Pass()] * 3
    await gateway.passes.aclose()


async def test_a_cancelled_slot_is_free_at_once_and_nothing_of_it_comes() -> None:
    service = Scripted()
    gateway = Gateway(service)
    gateway.order(opening(0, "old", max_tokens=50))
    pending = asyncio.create_task(gateway.next())
    await turns()
    gateway.order(cancels=(0,))
    gateway.order(opening(0, "new"))
    await turns()
    assert service.open_names == {"new"}
    service.go.set()
    rounds = list((await pending).rounds)
    while rounds[-1][1].finish is None:
        rounds += (await gateway.next()).rounds
    assert [(slot, done.base_len) for slot, done in rounds] == [(0, 3), (0, 4)]
    await gateway.passes.aclose()


async def test_a_slot_is_free_once_its_last_round_is_shown() -> None:
    service = Scripted()
    service.go.set()
    gateway = Gateway(service)
    gateway.order(opening(0, "a", max_tokens=1))
    assert await gateway.slots() == [0]
    gateway.order(opening(0, "b", max_tokens=1))
    done = await gateway.next()
    assert [slot for slot, _ in done.rounds] == [0]
    assert not done.ended
    await gateway.passes.aclose()


async def test_a_failed_generation_ends_after_its_rounds_and_others_continue() -> None:
    service = Scripted()
    service.fails = InternalError("broken")
    service.go.set()
    gateway = Gateway(service)
    gateway.order(opening(0, max_tokens=3))
    rounds, ended = 0, dict[int, bytes]()
    while not ended:
        done = await gateway.next()
        rounds, ended = rounds + len(done.rounds), dict(done.ended)
    assert rounds == 2
    assert isinstance(error_from_bytes(ended[0]), InternalError)
    service.fails = None
    gateway.order(opening(0, "next", max_tokens=1))
    assert await gateway.slots() == [0]
    await gateway.passes.aclose()


async def test_a_bug_is_not_told_and_has_a_request_id() -> None:
    service = Scripted()
    service.fails = RuntimeError("secret")
    service.go.set()
    gateway = Gateway(service)
    gateway.order(opening(0, max_tokens=1, **{"x-request-id": "r-1"}))
    error = error_from_bytes((await gateway.next()).ended[0])
    assert isinstance(error, InternalError)
    assert "secret" not in error.message
    assert "r-1" in error.message
    await gateway.passes.aclose()


async def test_an_opening_that_is_refused_ends_at_once_and_leaves_its_slot() -> None:
    service = Scripted()
    service.refuses = QueueFull("too many")
    gateway = Gateway(service)
    gateway.order(opening(0))
    assert isinstance(error_from_bytes((await gateway.next()).ended[0]), QueueFull)
    service.refuses = None
    service.go.set()
    gateway.order(opening(0, max_tokens=1))
    assert await gateway.slots() == [0]
    await gateway.passes.aclose()


async def test_a_generation_ends_when_its_time_is_over() -> None:
    service = Scripted()
    gateway = Gateway(service)
    gateway.orders.put_nowait(Orders([Opening(0, make_call(), 100, timeout=0.001)]))
    assert isinstance(error_from_bytes((await gateway.next()).ended[0]), DeadlineExceeded)
    assert not service.open_names
    await gateway.passes.aclose()


async def test_the_request_id_of_each_opening_is_in_its_logs() -> None:
    service = Scripted()
    gateway = Gateway(service)
    gateway.order(opening(0, **{"x-request-id": "r-1"}), opening(1, **{"x-request-id": "r-2"}))
    pending = asyncio.create_task(gateway.next())
    await turns()
    assert [each["request_id"] for each in service.seen] == ["r-1", "r-2"]
    assert {each["rpc"] for each in service.seen} == {"/test"}
    service.go.set()
    await pending
    await gateway.passes.aclose()


async def test_the_end_of_the_orders_ends_all_generations() -> None:
    service = Scripted()
    gateway = Gateway(service)
    gateway.order(opening(0), opening(1))
    pending = asyncio.create_task(gateway.next())
    await turns()
    assert service.open_names == {"s0", "s1"}
    gateway.orders.put_nowait(None)
    with pytest.raises(StopAsyncIteration):
        await pending
    assert not service.open_names


async def test_leaving_early_ends_all_generations() -> None:
    service = Scripted()
    gateway = Gateway(service)
    gateway.order(opening(0))
    pending = asyncio.create_task(gateway.next())
    await turns()
    pending.cancel()
    await asyncio.wait([pending])
    assert not service.open_names


async def test_a_drained_stream_ends_after_its_last_generation() -> None:
    service = Scripted()
    gateway = Gateway(service)
    gateway.order(opening(0, max_tokens=3))
    pending = asyncio.create_task(gateway.next())
    await turns()
    gateway.stream.drain()
    await turns()
    assert not pending.done()
    service.go.set()
    rounds = list((await pending).rounds)
    while rounds[-1][1].finish is None:
        rounds += (await gateway.next()).rounds
    with pytest.raises(Draining):
        await gateway.next()


async def test_an_idle_stream_ends_with_the_drain() -> None:
    gateway = Gateway(Scripted())
    pending = asyncio.create_task(gateway.next())
    await turns()
    gateway.stream.drain()
    with pytest.raises(Draining):
        await pending


async def test_a_gateway_that_opens_and_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier_service.passes.gateway_stream._MOST_UNREAD", 5)
    gateway = Gateway(Scripted())
    gateway.order(opening(-1))
    assert (await gateway.next()).ended.keys() == {-1}
    gateway.order(*(opening(-slot) for slot in range(1, 8)))
    await turns()
    with pytest.raises(QueueFull):
        await gateway.next()
