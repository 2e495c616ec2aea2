"""Lenience reaches the verifier, appears in every answer, and is refused where a mode must be exact."""

from typing import Any

import grpc
import openai
import pytest

from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.stage import Stage

LENIENT = {"mode": "rejection", "gamma": 3, "lenience": 0.5}
MODES = {
    "off": common_pb2.VERIFICATION_MODE_OFF,
    "rejection": common_pb2.VERIFICATION_MODE_REJECTION,
    "block": common_pb2.VERIFICATION_MODE_BLOCK,
    "coupled": common_pb2.VERIFICATION_MODE_COUPLED,
}


@pytest.mark.parametrize("temperature", [0, 1])
async def test_an_answer_says_that_it_is_lossy(here: Stage, temperature: float) -> None:
    answer: Any = await here.client.completions.create(
        model="bytes", prompt="hi", temperature=temperature, extra_body={"speculation": LENIENT}
    )
    assert answer.speculation == LENIENT | {"lossy": True, "fallbacks": {}}
    assert here.verifier.calls[-1].speculation.lenience == 0.5


@pytest.mark.parametrize("include_usage", [False, True])
async def test_the_last_chunk_of_a_stream_says_that_it_is_lossy(here: Stage, include_usage: bool) -> None:
    stream = await here.client.chat.completions.create(
        model="bytes",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": include_usage},
        extra_body={"speculation": LENIENT},
    )
    chunks: list[Any] = [chunk async for chunk in stream]
    assert chunks[-1].speculation["lossy"] is True


async def test_grpc_says_that_it_is_lossy(channel: grpc.aio.Channel) -> None:
    stub: Any = pb_grpc.GenerationServiceStub(channel)
    options = pb.SpeculationOptions(mode=MODES["rejection"], lenience=0.25)
    request = pb.GenerateRequest(text="hi", speculation=options)
    answer = await stub.Generate(request)
    assert (answer.speculation.lossy, answer.speculation.lenience) == (True, 0.25)
    events = [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request))]
    assert events[-1].finished.speculation.lossy
    exact = await stub.Generate(pb.GenerateRequest(text="hi"))
    assert (exact.speculation.lossy, exact.speculation.lenience) == (False, 1.0)


@pytest.mark.parametrize(
    ("fields", "speculation"),
    [
        ({}, {"mode": "off", "lenience": 0.5}),
        ({}, {"mode": "block", "lenience": 0.5}),
        ({}, {"mode": "coupled", "lenience": 0.5}),
        ({"seed": 1}, {"lenience": 0.5}),
        ({}, {"mode": "rejection", "lenience": 0}),
        ({}, {"mode": "rejection", "lenience": -0.5}),
        ({}, {"mode": "rejection", "lenience": 1.5}),
    ],
)
async def test_what_cannot_be_lenient_is_refused_by_name_over_http_and_grpc(
    here: Stage, channel: grpc.aio.Channel, fields: dict[str, Any], speculation: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await here.client.completions.create(
            model="bytes", prompt="hi", **fields, extra_body={"speculation": speculation}
        )
    assert refused.value.param == "speculation.lenience"
    options = pb.SpeculationOptions(lenience=speculation["lenience"])
    if "mode" in speculation:
        options.mode = MODES[speculation["mode"]]
    request = pb.GenerateRequest(text="hi", sampling=pb.SamplingOptions(**fields), speculation=options)
    stub: Any = pb_grpc.GenerationServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as denied:
        await stub.Generate(request)
    assert denied.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "lenience" in (denied.value.details() or "")


async def test_a_lenience_of_one_is_exact_in_every_mode(here: Stage) -> None:
    for mode in MODES:
        answer: Any = await here.client.completions.create(
            model="bytes", prompt="hi", extra_body={"speculation": {"mode": mode, "lenience": 1}}
        )
        assert answer.speculation["lossy"] is False
