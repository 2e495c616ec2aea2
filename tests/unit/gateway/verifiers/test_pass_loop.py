"""A loop commits a pass in one call, distributes the answers, and ends each generation separately."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from prometheus_client import CollectorRegistry
from structlog.contextvars import bound_contextvars

from gateway.metrics import GatewayMetrics
from gateway.store.values import RoundCommit
from gateway.verifiers import pass_loop
from gateway.verifiers.pass_loop import PassLoop, PassLoops
from gateway.verifiers.round_streams import Arrivals
from specdec.errors import Fenced, InternalError, NoVerifier, SessionStoreDown, SpecdecError
from specdec.rules.speculation import Origin
from specdec.wire.generation import GenerationCall, Round
from specdec.wire.passes import Opening
from tests.support.gateway_fakes import ScriptedVerifier, until
from tests.support.memory_sessions import MemorySessionStore
from tests.unit.gateway.turns.in_memory import header

CALL = header().call


class Stream:
    """A stream whose arrivals the test writes."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.opened: list[Opening] = []
        self.cancelled: list[int] = []
        self.closed = False

    def open(self, opening: Opening) -> None:
        self.opened.append(opening)

    def credit(self, slot: int, length: int) -> None:
        pass

    def cancel(self, slot: int) -> None:
        self.cancelled.append(slot)

    async def close(self) -> None:
        self.closed = True


class Store(MemorySessionStore):
    """Records the calls and answers each commit as the test specifies, once `free` is set."""

    def __init__(self, answer: Callable[[RoundCommit], bool | SpecdecError] = lambda commit: False) -> None:
        super().__init__()
        self.calls: list[list[RoundCommit]] = []
        self.free = asyncio.Event()
        self.free.set()
        self._answer = answer

    async def commit(self, rounds: Sequence[RoundCommit]) -> Sequence[bool | SpecdecError]:
        self.calls.append(list(rounds))
        await self.free.wait()
        self._up("commit")
        return [self._answer(each) for each in rounds]


class Receiver:
    """Accepts every round and records the replies."""

    def __init__(self, name: str = "s", error: Exception | None = None) -> None:
        self.name = name
        self.told: list[object] = []
        self._error = error

    def take(self, verified: Round) -> RoundCommit | None:
        if self._error is not None:
            raise self._error
        return RoundCommit(self.name, 1, verified.base_len, verified.tokens) if verified.tokens != (0,) else None

    def committed(self, answer: bool | SpecdecError) -> None:
        self.told.append(answer)

    def lost(self, error: SpecdecError) -> None:
        self.told.append(error)


def plain(base: int, token: int = 5) -> Round:
    return Round(base_len=base, tokens=(token,), origins=(Origin.PLAIN,))


def loop_over(stream: Stream, store: MemorySessionStore) -> PassLoop:
    return PassLoop(stream, store, GatewayMetrics(CollectorRegistry()))


def opened(loop: PassLoop, *receivers: Receiver, call: GenerationCall = CALL) -> list[pass_loop.Slot]:
    return [loop.open(call, receiver, 9, 60.0) for receiver in receivers]


async def test_a_pass_is_committed_in_one_call_and_each_generation_answered() -> None:
    stream = Stream()
    store = Store(lambda commit: Fenced("newer") if commit.session_id == "b" else commit.session_id == "c")
    loop, receivers = loop_over(stream, store), [Receiver(name) for name in "abc"]
    opened(loop, *receivers)
    stream.arrivals.add([(slot, plain(3)) for slot in range(3)], {})
    await until(lambda: all(receiver.told for receiver in receivers))
    assert [[each.session_id for each in call] for call in store.calls] == [["a", "b", "c"]]
    first, second, third = (receiver.told for receiver in receivers)
    assert (first, [type(each) for each in second], third) == ([False], [Fenced], [True])
    await loop.close()


async def test_a_verifier_gets_the_request_id_of_each_generation() -> None:
    stream = Stream()
    loop = loop_over(stream, Store())
    for request_id in ("r-1", "r-2"):
        with bound_contextvars(request_id=request_id):
            opened(loop, Receiver())
    assert [each.metadata for each in stream.opened] == [{"x-request-id": "r-1"}, {"x-request-id": "r-2"}]
    await loop.close()


async def test_what_arrives_during_a_commit_is_joined_in_the_next() -> None:
    stream, store, receiver = Stream(), Store(), Receiver()
    loop = loop_over(stream, store)
    opened(loop, receiver)
    store.free.clear()
    stream.arrivals.add([(0, plain(3))], {})
    await until(lambda: store.calls)
    for base in (4, 5):
        stream.arrivals.add([(0, plain(base, base))], {})
    stream.arrivals.add([(0, plain(6)._replace(draft=(5,)))], {})
    store.free.set()
    await until(lambda: len(receiver.told) == 3)
    assert [[each.tokens for each in call] for call in store.calls] == [[(5,)], [(4, 5), (5,)]]
    await loop.close()


async def test_a_silent_store_is_the_error_of_every_generation_of_the_pass() -> None:
    stream, store, receivers = Stream(), Store(), [Receiver("a"), Receiver("b")]
    store.down = True
    loop = loop_over(stream, store)
    opened(loop, *receivers)
    stream.arrivals.add([(0, plain(3)), (1, plain(3))], {})
    await until(lambda: all(receiver.told for receiver in receivers))
    assert [type(receiver.told[0]) for receiver in receivers] == [SessionStoreDown] * 2
    await loop.close()


@pytest.mark.parametrize(
    ("error", "told"), [(NoVerifier("senseless"), NoVerifier), (ZeroDivisionError("a bug"), InternalError)]
)
async def test_a_round_that_is_not_taken_ends_its_generation_alone(error: Exception, told: type) -> None:
    stream, store = Stream(), Store()
    loop, odd, sound = loop_over(stream, store), Receiver("a", error), Receiver("b")
    opened(loop, odd, sound)
    stream.arrivals.add([(0, plain(3)), (1, plain(3))], {})
    await until(lambda: sound.told)
    assert ([type(each) for each in odd.told], sound.told) == ([told], [False])
    assert [each.session_id for each in store.calls[0]] == ["b"]
    await loop.close()


async def test_a_failure_is_told_after_the_rounds_that_came_with_it() -> None:
    stream, store, receiver = Stream(), Store(), Receiver()
    loop = loop_over(stream, store)
    opened(loop, receiver)
    stream.arrivals.add([(0, plain(3))], {0: NoVerifier("lost")})
    await until(lambda: len(receiver.told) == 2)
    assert receiver.told[0] is False
    assert isinstance(receiver.told[1], NoVerifier)
    await loop.close()


async def test_rounds_of_a_closed_slot_are_dropped() -> None:
    stream, store, gone, stays = Stream(), Store(), Receiver("a"), Receiver("b")
    loop = loop_over(stream, store)
    slot, _ = opened(loop, gone, stays)
    slot.close()
    slot.close()
    stream.arrivals.add([(0, plain(3)), (1, plain(3))], {})
    await until(lambda: stays.told)
    assert (gone.told, stream.cancelled) == ([], [0])
    await loop.close()


async def test_a_finished_generation_is_not_cancelled_at_its_verifier() -> None:
    stream = Stream()
    loop = loop_over(stream, Store())
    (slot,) = opened(loop, Receiver())
    slot.close(finished=True)
    assert stream.cancelled == []
    await loop.close()


async def test_a_lost_stream_ends_every_generation_of_it() -> None:
    stream, receivers = Stream(), [Receiver("a"), Receiver("b")]
    loop = loop_over(stream, Store())
    opened(loop, *receivers)
    stream.arrivals.lose(NoVerifier("gone"))
    await loop.task
    assert [str(receiver.told[0]) for receiver in receivers] == ["gone", "gone"]
    assert stream.closed


async def test_a_retired_loop_ends_with_its_last_generation() -> None:
    stream = Stream()
    loop = loop_over(stream, Store())
    (slot,) = opened(loop, Receiver())
    loop.retire()
    await asyncio.sleep(0)
    assert not loop.task.done()
    slot.close()
    await until(lambda: stream.closed)


async def test_generations_of_one_verifier_share_a_loop_until_it_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verifier = ScriptedVerifier()
    loops = PassLoops(Store(), GatewayMetrics(CollectorRegistry()))
    first = loops.of(verifier, verifier.facts)  # type: ignore[arg-type]
    assert loops.of(verifier, verifier.facts) is first  # type: ignore[arg-type]
    verifier.dialled += 1
    second = loops.of(verifier, verifier.facts)  # type: ignore[arg-type]
    assert second is not first
    monkeypatch.setattr(pass_loop, "_RENEWED", 0.0)
    assert loops.of(verifier, verifier.facts) is not second  # type: ignore[arg-type]
    await until(lambda: first.task.done() and second.task.done())
    await loops.close()
    assert loops._current == {}
