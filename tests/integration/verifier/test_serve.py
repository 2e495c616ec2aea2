"""The stream of passes over a real connection: the same tokens as Generate, credit, ends, refusals, drain."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import grpc
import pytest

from specdec.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    Fenced,
    FieldInvalid,
    FieldRequired,
    GammaTooLarge,
    MessageCorrupted,
    SpecdecError,
    TokenOutOfRange,
)
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Mode, Speculation, TreeOptions
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.serving.rpc.status import from_rpc_error
from specdec.wire.generation import round_from_pb
from specdec.wire.passes import Opening, Orders, orders_to_pb
from tests.integration.verifier.client import Client, connected, output
from tests.integration.verifier.draft_scripts import oracle, silent
from tests.integration.verifier.house import House
from tests.integration.verifier.passes_client import FAR, make_call, serving
from tests.integration.verifier.scripted_drafter import eventually
from tests.integration.verifier.target import LENGTH, PROMPT, Target
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

PLAIN = Speculation(Mode.OFF)
LONG = 100


async def test_all_generations_of_a_gateway_go_over_one_stream(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(oracle(target)))
    prompts = {slot: (*PROMPT, 50 + slot) for slot in range(5)}
    async with serving(client) as stream:
        calls = {slot: make_call(f"s{slot}", tokens=tokens, prompt_len=8) for slot, tokens in prompts.items()}
        await stream.order(*(Opening(slot, call, FAR) for slot, call in calls.items()))
        await stream.until(*prompts)
        await stream.order(Opening(0, make_call("again"), FAR))  # the slot is free again
        del stream.rounds[0]
        await stream.until(0)
    assert stream.output(0) == target.greedy(PROMPT, LENGTH)
    for slot in (1, 2, 3, 4):
        assert stream.output(slot) == target.greedy(prompts[slot], LENGTH)
        assert stream.rounds[slot][-1].finish is FinishReason.LENGTH
    assert any(len(done.rounds) == len(prompts) for done in stream.passes), "one message a pass"


@pytest.mark.parametrize(
    "changes",
    [
        {"speculation": PLAIN},
        {"speculation": Speculation(Mode.REJECTION, 4), "logprobs": 2},
        {"speculation": Speculation(Mode.REJECTION, 4, detail=True)},
        {"speculation": Speculation(Mode.COUPLED, 3), "sampling": SamplingParams(temperature=1.0, seed=5)},
        {"speculation": Speculation(Mode.BLOCK, 3), "sampling": SamplingParams(temperature=1.0, top_p=0.9, seed=6)},
        {"speculation": Speculation(Mode.REJECTION, tree=TreeOptions(6, 2, 3))},
    ],
)
async def test_both_rpcs_say_the_same(house: House, target: Target, changes: dict[str, Any]) -> None:
    """Compares tokens, log probabilities and the presence of details."""
    client = await house.verifier(await house.drafter(oracle(target)))
    async with serving(client) as stream:
        call = make_call(**changes)
        message = orders_to_pb(Orders([Opening(3, call, FAR)]))
        await stream.send(message)
        await stream.until(3)
        alone = [round_from_pb(each) async for each in client.stub.Generate(replaced(message.opens[0].call))]
    assert stream.output(3) == [token for done in alone for token in done.tokens]
    assert [each for done in stream.rounds[3] for each in done.logprobs] == [e for done in alone for e in done.logprobs]
    assert [done.detail is None for done in stream.rounds[3]] == [not call.speculation.detail] * len(stream.rounds[3])


def replaced(call: pb.GenerateRequest) -> pb.GenerateRequest:
    """Return the same call for another session."""
    call.session_id = "other"
    return call


async def test_a_generation_waits_for_credit_and_the_others_go_on(house: House, target: Target) -> None:
    client = await house.verifier()
    credit = len(PROMPT) + 6
    async with serving(client) as stream:
        await stream.order(Opening(0, make_call(speculation=PLAIN), credit))
        while len(stream.output(0)) < 6:
            await stream.next()
        await stream.order(Opening(1, make_call("other", speculation=PLAIN), FAR))
        await stream.until(1)
        assert stream.output(0) == target.greedy(PROMPT, LENGTH)[:6], "no round begins without credit"
        await stream.order(credits={0: FAR, 7: FAR})
        await stream.until(0)
    assert stream.output(0) == stream.output(1) == target.greedy(PROMPT, LENGTH)


async def test_a_round_overshoots_its_credit_by_its_draft_at_most(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(oracle(target)))
    gamma = 4
    async with serving(client) as stream:
        call = make_call(speculation=Speculation(Mode.REJECTION, gamma))
        await stream.order(Opening(0, call, len(PROMPT) + 1))
        await stream.next()
        for length in range(len(PROMPT) + 2, len(PROMPT) + LENGTH + 1):
            await stream.order(credits={0: length})
            while not stream.is_over(0) and len(PROMPT) + len(stream.output(0)) < length:
                await stream.next()
            assert len(PROMPT) + len(stream.output(0)) <= length + gamma
        await stream.until(0)
    assert stream.output(0) == target.greedy(PROMPT, LENGTH)


PAGE_TOKENS = 128
ONE_PAGE = PAGE_TOKENS * 256
"""Bytes per token: 2 layers, keys and values, 2 heads of 8 floats each."""


async def test_a_cancelled_generation_frees_its_room_its_slot_and_its_drafter(house: House, target: Target) -> None:
    drafter = await house.drafter(silent)
    client = await house.verifier(drafter, kv_bytes=ONE_PAGE, drafting={"timeout": 60, "probe": 60})
    async with serving(client) as stream:
        await stream.order(Opening(0, make_call(speculation=Speculation(Mode.REJECTION, 3)), FAR))
        await eventually(lambda: len(drafter.servicer.opens) == 1)
        await stream.order(cancels=(0, 9))
        await stream.order(Opening(0, make_call("next", speculation=PLAIN), FAR))
        await stream.until(0)
        await eventually(lambda: drafter.servicer.closes == ["s"])
    assert stream.output(0) == target.greedy(PROMPT, LENGTH)


async def test_the_end_of_a_stream_ends_its_generations(house: House, target: Target) -> None:
    drafter = await house.drafter(silent)
    client = await house.verifier(drafter, kv_bytes=ONE_PAGE, drafting={"timeout": 60, "probe": 60})
    call = make_call(speculation=Speculation(Mode.REJECTION, 3))
    for name, end in (("left", lambda each: each.cancel()), ("done", lambda each: each.done_writing())):
        async with serving(client) as stream:
            await stream.order(Opening(0, replace(call, session_id=name), FAR))
            await eventually(lambda name=name: name in {each.session_id for each in drafter.servicer.opens})  # type: ignore[misc]
            if asyncio.iscoroutine(ending := end(stream.call)):
                await ending
                while await stream.next() is not None:
                    pass
            await eventually(lambda name=name: name in drafter.servicer.closes)  # type: ignore[misc]
    assert output(await client.rounds(session="after", mode=Mode.OFF)) == target.greedy(PROMPT, LENGTH)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tokens": (), "prompt_len": 0}, FieldRequired),
        ({"session_id": ""}, FieldRequired),
        ({"tokens": (5, 320), "prompt_len": 2}, TokenOutOfRange),
        ({"tokens": (5,) * 256, "prompt_len": 256}, ContextLengthExceeded),
        ({"speculation": Speculation(Mode.REJECTION, 17)}, GammaTooLarge),
    ],
)
async def test_an_opening_that_breaks_a_limit_is_refused_alone(
    house: House, target: Target, changes: dict[str, Any], expected: type[SpecdecError]
) -> None:
    client = await house.verifier()
    async with serving(client) as stream:
        good = make_call("good", speculation=PLAIN)
        await stream.order(Opening(0, make_call(**changes), FAR), Opening(1, good, FAR))
        await stream.until(0, 1)
    assert type(stream.ended[0]) is expected
    assert stream.output(1) == target.greedy(PROMPT, LENGTH)


async def test_an_opening_that_cannot_be_read_is_refused_alone(house: House, target: Target) -> None:
    client = await house.verifier()
    message = orders_to_pb(Orders([Opening(slot, make_call(f"s{slot}", speculation=PLAIN), FAR) for slot in (0, 1)]))
    message.opens[0].call.tokens = b"abc"
    async with serving(client) as stream:
        await stream.send(message)
        await stream.until(0, 1)
    assert isinstance(stream.ended[0], FieldInvalid)
    assert stream.output(1) == target.greedy(PROMPT, LENGTH)


async def test_a_slot_in_use_and_a_slot_below_zero_are_refused(house: House) -> None:
    drafter = await house.drafter(silent)
    client = await house.verifier(drafter, drafting={"timeout": 60, "probe": 60})
    async with serving(client) as stream:
        call = make_call(speculation=Speculation(Mode.REJECTION, 3))
        await stream.order(Opening(2, call, FAR))
        await eventually(lambda: len(drafter.servicer.opens) == 1)
        await stream.order(
            Opening(2, replace(call, session_id="t"), FAR), Opening(-1, replace(call, session_id="u"), FAR)
        )
        while len(stream.ended) < 2:
            await stream.next()
    assert {slot: type(error) for slot, error in stream.ended.items()} == {2: FieldInvalid, -1: FieldInvalid}
    assert len(drafter.servicer.opens) == 1, "the first goes on, and no other began"


async def test_columns_that_do_not_fit_end_the_stream(house: House) -> None:
    client = await house.verifier()
    async with serving(client) as stream:
        await stream.send(pb.ServeRequest(credit_slots=b"\0\0\0\0"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.next()
    assert isinstance(from_rpc_error(caught.value), FieldInvalid)


async def test_a_message_without_its_checksum_ends_the_stream(house: House, target: Target) -> None:
    client = await house.verifier()
    async with grpc.aio.insecure_channel(client.address) as plain:
        serve = plain.stream_stream(
            "/specdec.verifier.v1.VerifierService/Serve", pb.ServeRequest.SerializeToString, pb.ServeResponse.FromString
        )
        call = serve(metadata=(("specdec-checksum", "crc32"),))
        await call.write(orders_to_pb(Orders([Opening(0, make_call(speculation=PLAIN), FAR)])))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert isinstance(from_rpc_error(caught.value), MessageCorrupted)


async def test_a_generation_ends_at_its_deadline(house: House) -> None:
    client = await house.verifier(await house.drafter(silent), drafting={"timeout": 60, "probe": 60})
    async with serving(client) as stream:
        call = make_call(speculation=Speculation(Mode.REJECTION, 3))
        await stream.order(Opening(0, call, FAR, timeout=0.05))
        await stream.until(0)
    assert isinstance(stream.ended[0], DeadlineExceeded)


async def test_an_older_epoch_is_fenced_and_a_newer_one_fences(house: House, target: Target) -> None:
    drafter = await house.drafter(silent)
    client = await house.verifier(drafter, drafting={"timeout": 60, "probe": 60})
    async with serving(client) as older, serving(client) as newer:
        call = make_call(epoch=2, speculation=Speculation(Mode.REJECTION, 3))
        await older.order(Opening(0, call, FAR))
        await eventually(lambda: len(drafter.servicer.opens) == 1)
        await newer.order(Opening(0, make_call(epoch=1), FAR), Opening(1, make_call(epoch=3, speculation=PLAIN), FAR))
        await newer.until(0, 1)
        await older.until(0)
    assert isinstance(newer.ended[0], Fenced)
    assert isinstance(older.ended[0], Fenced)
    assert newer.output(1) == target.greedy(PROMPT, LENGTH)


async def test_both_rpcs_fence_each_other(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(silent), drafting={"timeout": 60, "probe": 60})
    async with serving(client) as stream:
        await stream.order(Opening(0, make_call(epoch=2, speculation=Speculation(Mode.REJECTION, 3)), FAR))
        rounds = await client.rounds(session="s", epoch=3, mode=Mode.OFF)
        await stream.until(0)
    assert isinstance(stream.ended[0], Fenced)
    assert output(rounds) == target.greedy(PROMPT, LENGTH)


async def test_a_verifier_says_that_it_serves_passes(house: House) -> None:
    assert (await (await house.verifier()).info()).passes


async def drained(target: Target, stack: AsyncExitStack) -> tuple[Any, Client]:
    overrides = {
        "model": {"path": target.folder, "device": "cpu"},
        "address": "127.0.0.1:0",
        "http": "127.0.0.1:0",
        "kv_bytes": 2**22,
    }
    running = await stack.enter_async_context(verifier(VerifierSettings.load(None, overrides)))
    return running, await stack.enter_async_context(connected(running.address))


async def test_what_runs_is_finished_in_a_drain_and_nothing_new_is_taken(target: Target) -> None:
    async with AsyncExitStack() as stack:
        running, client = await drained(target, stack)
        stream = await stack.enter_async_context(serving(client))
        await stream.order(Opening(0, make_call(speculation=PLAIN, max_tokens=LONG), FAR))
        await stream.next()
        draining = asyncio.create_task(running.drain(60.0))
        await asyncio.sleep(0)
        await stream.order(Opening(1, make_call("late"), FAR))
        await stream.until(0, 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.until(2)
        await draining
    assert isinstance(stream.ended[1], Draining)
    assert stream.output(0) == target.greedy(PROMPT, LONG)
    assert isinstance(from_rpc_error(caught.value), Draining), "a stream without generations says why it ends"


async def test_what_is_not_done_in_time_is_told_so_after_its_last_round(target: Target) -> None:
    async with AsyncExitStack() as stack:
        running, client = await drained(target, stack)
        stream = await stack.enter_async_context(serving(client))
        await stream.order(Opening(0, make_call(speculation=PLAIN, max_tokens=LONG), len(PROMPT) + 10))
        await stream.next()
        draining = asyncio.create_task(running.drain(0.0))
        await stream.until(0)
        await draining
    assert isinstance(stream.ended[0], Draining)
    assert stream.output(0) == target.greedy(PROMPT, LONG)[: len(stream.output(0))]
