"""The verifier's API over a real connection: limits, ends, resumption, fencing, cancellation, metrics, checks."""

import asyncio
import json
import urllib.request
from typing import Any

import grpc
import pytest

from specdec.errors import (
    ConfigError,
    ContextLengthExceeded,
    Fenced,
    FieldRequired,
    GammaTooLarge,
    ModelRefused,
    SpecdecError,
    TokenOutOfRange,
)
from specdec.protos.common.v1 import common_pb2
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.server import start_grpc
from specdec.serving.rpc.status import from_rpc_error
from tests.integration.verifier.client import output
from tests.integration.verifier.draft_scripts import oracle, silent
from tests.integration.verifier.house import House
from tests.integration.verifier.scripted_drafter import eventually
from tests.integration.verifier.target import LENGTH, PROMPT, Target
from verifier_service.app import verifier
from verifier_service.check import check
from verifier_service.config import VerifierSettings


async def refusal(call: Any) -> SpecdecError | None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return from_rpc_error(caught.value)


async def test_an_end_id_inside_an_accepted_draft_ends_the_generation_there(house: House, target: Target) -> None:
    text = target.greedy(PROMPT, LENGTH)
    end = next(token for token in text[8:] if token not in text[:8])
    client = await house.verifier(await house.drafter(oracle(target)))
    rounds = await client.rounds(gamma=16, stop=[end])
    assert output(rounds) == text[: text.index(end) + 1]
    assert rounds[-1].finish_reason == common_pb2.FINISH_REASON_STOP
    assert all(response.accepted <= len(response.tokens) // 4 for response in rounds)


async def test_max_tokens_is_never_overshot(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(oracle(target)))
    for count in (1, 2, 7):
        rounds = await client.rounds(gamma=16, max_tokens=count, session=f"s{count}")
        assert output(rounds) == target.greedy(PROMPT, LENGTH)[:count]
        assert rounds[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert all(len(response.draft_tokens) // 4 < count for response in rounds)


async def test_the_context_ends_a_generation(house: House, target: Target) -> None:
    client = await house.verifier()
    context = (await client.info()).context_length
    rounds = await client.rounds(tokens=[5] * (context - 3), max_tokens=100, mode=Mode.OFF)
    assert len(output(rounds)) == 3
    assert rounds[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_a_long_prompt_is_computed_in_pieces_beside_running_sessions(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(oracle(target)), chunk_tokens=8)
    prompt = [5 + index % 50 for index in range(100)]
    short, long = await asyncio.gather(client.rounds(gamma=3), client.rounds(prompt, session="long", gamma=3))
    assert output(short) == target.greedy(PROMPT, LENGTH)
    assert output(long) == target.greedy(prompt, LENGTH)


async def test_a_generation_goes_on_where_another_process_left_it(house: House, target: Target) -> None:
    text = target.greedy(PROMPT, LENGTH)
    client = await house.verifier(await house.drafter(oracle(target)))
    rest = await client.rounds([*PROMPT, *text[:10]], prompt_len=len(PROMPT), epoch=3, gamma=4)
    assert rest[0].base_len == len(PROMPT) + 10
    assert output(rest) == text[10:]
    (nothing,) = await client.rounds([*PROMPT, *text], prompt_len=len(PROMPT), epoch=4)
    assert (nothing.tokens, nothing.finish_reason) == (b"", common_pb2.FINISH_REASON_LENGTH)


async def test_sampled_output_depends_on_the_seed_and_on_nothing_else(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(oracle(target)))
    params = SamplingParams(temperature=1.0, seed=5, frequency_penalty=0.5, repetition_penalty=1.2)
    first, again, other = await asyncio.gather(
        client.rounds(session="a", params=params, mode=Mode.COUPLED, gamma=3),
        client.rounds(session="b", params=params, mode=Mode.COUPLED, gamma=0),
        client.rounds(session="c", params=SamplingParams(temperature=1.0, seed=6), mode=Mode.COUPLED, gamma=3),
    )
    assert output(first) == output(again)
    assert output(first) != output(other)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tokens": (), "prompt_len": 0}, FieldRequired),
        ({"session": ""}, FieldRequired),
        ({"tokens": (5, 320)}, TokenOutOfRange),
        ({"stop": (320,)}, TokenOutOfRange),
        ({"params": SamplingParams(logit_bias={320: 1.0})}, TokenOutOfRange),
        ({"tokens": (5,) * 256}, ContextLengthExceeded),
        ({"gamma": 17}, GammaTooLarge),
    ],
)
async def test_what_breaks_a_limit_is_refused_by_name(
    house: House, options: dict[str, Any], expected: type[SpecdecError]
) -> None:
    client = await house.verifier()
    assert isinstance(await refusal(client.call(**options)), expected)


PAGE_TOKENS = 128
ONE_PAGE = PAGE_TOKENS * 256
"""Bytes per token: 2 layers, keys and values, 2 heads of 8 floats each."""


async def test_what_can_never_have_room_is_refused_and_what_can_waits(house: House, target: Target) -> None:
    client = await house.verifier(kv_bytes=ONE_PAGE)
    assert isinstance(await refusal(client.call(max_tokens=PAGE_TOKENS)), ContextLengthExceeded)
    found = await asyncio.gather(*(client.rounds(session=f"s{index}", mode=Mode.OFF) for index in range(3)))
    assert [output(rounds) for rounds in found] == [target.greedy(PROMPT, LENGTH)] * 3


async def test_an_older_epoch_is_fenced(house: House) -> None:
    client = await house.verifier()
    await client.rounds(epoch=2, mode=Mode.OFF, max_tokens=2)
    assert isinstance(await refusal(client.call(epoch=1)), Fenced)


async def test_a_newer_epoch_ends_the_older_run(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(silent), drafting={"timeout": 60, "probe": 60})
    older = client.call(gamma=2)  # waits for a draft that never arrives
    await asyncio.sleep(0.5)
    newer = client.call(epoch=2, mode=Mode.OFF)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await older.read()
    assert isinstance(from_rpc_error(caught.value), Fenced)
    assert output([response async for response in newer]) == target.greedy(PROMPT, LENGTH)


async def test_a_caller_that_leaves_frees_its_room_and_its_drafter(house: House, target: Target) -> None:
    drafter = await house.drafter(silent)
    client = await house.verifier(drafter, kv_bytes=ONE_PAGE, drafting={"timeout": 60, "probe": 60})
    left = client.call(gamma=3)
    await eventually(lambda: len(drafter.servicer.opens) == 1)
    left.cancel()
    await eventually(lambda: drafter.servicer.closes == ["s"])
    assert output(await client.rounds(session="next", mode=Mode.OFF)) == target.greedy(PROMPT, LENGTH)


async def test_metrics_tell_what_speculation_did(target: Target, house: House, http: str) -> None:
    drafter = await house.drafter(oracle(target))
    client = await house.verifier(drafter, http=http)
    rounds = await client.rounds(gamma=4)
    accepted = sum(response.accepted for response in rounds)
    assert accepted > 0
    body = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{http}/metrics", timeout=60).read().decode())
    assert f"specdec_spec_accepted_tokens_total {accepted}.0" in body
    assert f'specdec_spec_tokens_by_origin_total{{origin="accepted"}} {accepted}.0' in body
    assert f'specdec_drafter_up{{address="{drafter.address}",state="ready"}} 1.0' in body
    assert "specdec_requests_waiting 0.0" in body


async def test_a_missing_model_and_a_taken_port_are_configuration_errors(house: House, target: Target) -> None:
    settings = {"address": "127.0.0.1:0", "http": "127.0.0.1:0"}
    with pytest.raises(ModelRefused):
        async with verifier(VerifierSettings.load(None, {"model": {"path": "/nowhere"}, **settings})):
            pass
    taken = await start_grpc("127.0.0.1:0", lambda server: None, [])
    with pytest.raises(ConfigError, match="cannot listen"):
        async with verifier(VerifierSettings.load(None, {"model": {"path": target.folder}, "address": taken.address})):
            pass
    await taken.stop(0)


async def test_check_tells_what_fits_and_what_does_not(house: House, target: Target) -> None:
    fits = await house.drafter(silent)
    foreign = await house.drafter(silent, tokenizer_hash="other")
    settings = VerifierSettings.load(
        None,
        {
            "model": {"path": target.folder, "device": "cpu"},
            "drafters": [fits.address, foreign.address, "127.0.0.1:1"],
            "address": "127.0.0.1:0",
        },
    )
    written: list[str] = []
    assert await check(settings, written.append) is False
    found = {line["name"]: line for line in map(json.loads, written)}
    assert found["model"]["status"] == "ok"
    assert found["tokenizer"]["detail"].endswith(target.tokenizer_hash)
    assert found[f"drafter {fits.address}"]["status"] == "ok"
    assert found[f"drafter {foreign.address}"]["status"] == "fail"
    assert "--drafter-vocabulary translate" in found[f"drafter {foreign.address}"]["remedy"]
    assert found["drafter 127.0.0.1:1"]["status"] == "warn"
