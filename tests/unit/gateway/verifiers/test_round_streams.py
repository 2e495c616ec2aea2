"""Streams of rounds: orders are sent together, credit limits a generation, and arrivals are read before the end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from gateway.verifiers import round_streams
from gateway.verifiers.round_streams import Arrivals, CallStream, PassStream, RoundStream, grouped
from specdec.errors import NoVerifier, SpecdecError
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.generation import GenerationCall, Round
from specdec.wire.passes import Opening, Orders, Pass
from tests.support.gateway_fakes import EOS, Script, ScriptedVerifier, output, until

CALL = GenerationCall(
    tokens=(1, 2, 3),
    prompt_len=3,
    sampling=SamplingParams(),
    max_tokens=50,
    stop_token_ids=(EOS,),
    speculation=Speculation(Mode.REJECTION),
)
MUCH = 1_000
STREAMS = pytest.mark.parametrize("make", [PassStream, CallStream])
Make = Callable[[ScriptedVerifier], RoundStream]


def opening(slot: int, credit: int = MUCH) -> Opening:
    return Opening(slot, CALL, credit, 60.0)


async def all_of(stream: RoundStream, slots: int) -> tuple[dict[int, list[int]], dict[int, SpecdecError]]:
    """Return the tokens and the errors by slot, once all slots have ended."""
    tokens: dict[int, list[int]] = {}
    ended: dict[int, SpecdecError] = {}
    left = slots
    while left:
        rounds, failed = await stream.arrivals.take()
        for slot, own in rounds.items():
            tokens.setdefault(slot, []).extend(token for each in own for token in each.tokens)
            left -= own[-1].finish is not None
        left -= len(failed)
        ended |= failed
    return tokens, ended


@STREAMS
async def test_the_generations_of_a_stream_have_their_own_slots(make: Make) -> None:
    stream = make(ScriptedVerifier())
    for slot in (3, 7):
        stream.open(opening(slot))
    assert await all_of(stream, 2) == ({3: output(Script()), 7: output(Script())}, {})
    await stream.close()


@STREAMS
async def test_a_generation_that_fails_ends_alone_after_what_came_before(make: Make) -> None:
    verifier = ScriptedVerifier()
    verifier.failures = [(1, NoVerifier("lost"))]
    stream = make(verifier)
    stream.open(opening(0))
    stream.open(opening(1))
    tokens, ended = await all_of(stream, 2)
    assert sorted(map(len, tokens.values())) == [4, len(output(Script()))]
    ((_, error),) = ended.items()
    assert (type(error), error.message) == (NoVerifier, "lost")
    await stream.close()


@STREAMS
async def test_a_generation_without_credit_waits_for_more(make: Make) -> None:
    verifier = ScriptedVerifier(script=Script(gamma=0))
    stream = make(verifier)
    stream.open(opening(0, credit=5))
    await until(lambda: stream.arrivals._rounds.get(0) and len(stream.arrivals._rounds[0]) == 2)
    await asyncio.sleep(0.05)
    rounds, _ = await stream.arrivals.take()
    assert [each.tokens for each in rounds[0]] == [(72,), (101,)]
    stream.credit(0, MUCH)
    tokens, _ = await all_of(stream, 1)
    assert tokens[0] == output(Script())[2:]
    await stream.close()


@STREAMS
async def test_a_cancelled_generation_is_cancelled_at_its_verifier(make: Make) -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stream = make(verifier)
    stream.open(opening(0))
    await until(lambda: verifier.calls)
    stream.cancel(0)
    await until(lambda: verifier.cancelled == 1)
    await stream.close()


@STREAMS
async def test_closing_ends_all_generations_and_leaves_no_task(make: Make) -> None:
    before = asyncio.all_tasks()
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stream = make(verifier)
    stream.open(opening(0))
    stream.open(opening(1))
    await until(lambda: len(verifier.calls) == 2)
    await stream.close()
    await until(lambda: verifier.cancelled == 2 and asyncio.all_tasks() == before)


async def test_orders_of_one_turn_of_the_loop_are_one_message() -> None:
    seen: list[Orders] = []

    class Listening(ScriptedVerifier):
        async def serve(self, orders: AsyncIterator[Orders]) -> AsyncIterator[object]:  # type: ignore[override]
            async for each in orders:
                seen.append(each)
                yield Pass([], {})

    stream = PassStream(Listening())  # type: ignore[arg-type]
    for slot in range(3):
        stream.open(opening(slot))
    stream.credit(1, 9)
    stream.cancel(0)
    await until(lambda: seen)
    assert seen == [Orders([opening(slot) for slot in range(3)], [0], {1: 9})]
    await stream.close()


async def test_the_orders_to_a_verifier_that_was_lost_end() -> None:
    ended = asyncio.Event()

    async def read(orders: AsyncIterator[Orders]) -> None:
        async for _ in orders:
            pass
        ended.set()

    class Lost(ScriptedVerifier):
        async def serve(self, orders: AsyncIterator[Orders]) -> AsyncIterator[object]:  # type: ignore[override]
            reading.append(asyncio.create_task(read(orders)))
            await asyncio.sleep(0)
            raise NoVerifier("lost")
            yield

    reading: list[asyncio.Task[None]] = []
    stream = PassStream(Lost())  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await ended.wait()
    await stream.close()


async def test_a_lost_stream_is_told_after_everything_that_came() -> None:
    arrivals = Arrivals()
    arrivals.add([(1, Round(base_len=1, tokens=(5,)))], {2: NoVerifier("two")})
    arrivals.lose(NoVerifier("all"))
    rounds: Mapping[int, Sequence[Round]]
    rounds, ended = await arrivals.take()
    assert (list(rounds), list(ended)) == ([1], [2])
    with pytest.raises(NoVerifier, match="all"):
        await arrivals.take()


def one(base: int) -> Round:
    return Round(base_len=base, tokens=(5,))


async def bases(arrivals: Arrivals) -> dict[int, list[int]]:
    """Return where the rounds of each slot begin that are due now."""
    async with asyncio.timeout(10):
        rounds, _ = await arrivals.take()
    return {slot: [each.base_len for each in own] for slot, own in rounds.items()}


async def test_rounds_of_a_patient_slot_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_streams, "HELD_SECONDS", 60.0)
    arrivals = Arrivals()
    arrivals.hold(0, True)
    for base in range(round_streams.HELD_TOKENS):
        arrivals.add([(0, one(base)), (1, one(base))], {})
        found = await bases(arrivals)
        assert found.pop(1) == [base]
        assert bool(found) is (base == round_streams.HELD_TOKENS - 1)
    assert found[0] == [*range(round_streams.HELD_TOKENS)]


async def test_a_held_round_is_due_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_streams, "HELD_SECONDS", 0.01)
    arrivals = Arrivals()
    arrivals.hold(0, True)
    for base in (3, 4):
        arrivals.add([(0, one(base))], {})
        assert await bases(arrivals) == {0: [base]}


@pytest.mark.parametrize("end", ["finish", "failure", "loss", "reader"])
async def test_held_rounds_are_due_at_an_end_or_a_reader(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_streams, "HELD_SECONDS", 60.0)
    arrivals = Arrivals()
    arrivals.hold(0, True)
    arrivals.add([(0, one(3))], {})
    last = one(4)._replace(finish=FinishReason.LENGTH if end == "finish" else None)
    arrivals.add([(0, last)], {0: NoVerifier("lost")} if end == "failure" else {})
    if end == "loss":
        arrivals.lose(NoVerifier("all"))
    if end == "reader":
        arrivals.hold(0, False)
    assert await bases(arrivals) == {0: [3, 4]}


async def test_held_rounds_of_a_closed_slot_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_streams, "HELD_SECONDS", 0.01)
    arrivals = Arrivals()
    arrivals.hold(0, True)
    arrivals.add([(0, one(3))], {})
    arrivals.drop(0)
    await asyncio.sleep(0.02)
    arrivals.add([(1, one(3))], {})
    assert await bases(arrivals) == {1: [3]}


async def test_a_verifier_whose_stream_ends_is_lost() -> None:
    class Gone(ScriptedVerifier):
        async def serve(self, orders: AsyncIterator[Orders]) -> AsyncIterator[object]:  # type: ignore[override]
            return
            yield

    stream = PassStream(Gone())  # type: ignore[arg-type]
    with pytest.raises(NoVerifier, match="a:1 ended its stream"):
        await stream.arrivals.take()


def test_long_openings_are_in_groups_of_their_own() -> None:
    prompt = replace(CALL, tokens=(1,) * 20_000)
    words = replace(CALL, sampling=SamplingParams(bad_words=((1,) * 100,) * 400))
    biased = replace(CALL, sampling=SamplingParams(logit_bias=dict.fromkeys(range(4096), 1.0)))
    calls = (CALL, CALL, prompt, CALL, prompt, words, biased, CALL)
    opens = [Opening(slot, call, MUCH, 60.0) for slot, call in enumerate(calls)]
    slots = [[each.slot for each in group] for group in grouped(opens)]
    assert slots == [[0, 1, 2, 3], [4], [5], [6], [7]]
    assert grouped([]) == [[]]


async def test_long_openings_are_sent_before_cancels_and_credits() -> None:
    sent: list[Orders] = []

    class Caller(ScriptedVerifier):
        async def serve(self, orders: AsyncIterator[Orders]) -> AsyncGenerator[Pass]:
            async for each in orders:
                sent.append(each)
            yield Pass()

    stream = PassStream(Caller())
    for slot in range(3):
        stream.open(Opening(slot, replace(CALL, tokens=(1,) * 30_000), MUCH, 60.0))
    stream.credit(0, 7)
    stream.cancel(1)
    await until(lambda: len(sent) == 3)
    assert [[each.slot for each in orders.opens] for orders in sent] == [[0], [1], [2]]
    assert [(tuple(orders.cancels), dict(orders.credits)) for orders in sent] == [((), {}), ((), {}), ((1,), {0: 7})]
    await stream.close()
