"""The gRPC API returns and refuses the same as the HTTP API."""

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from specdec.errors import MessageTooLarge
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.serving.rpc.status import from_rpc_error
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import EOS, Script, output, until

TEXT = Script().text


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return pb_grpc.GenerationServiceStub(channel)


async def test_generate_returns_the_whole(stub: Any) -> None:
    answer = await stub.Generate(
        pb.GenerateRequest(text="Say it", sampling=pb.SamplingOptions(seed=3), stop=pb.StopOptions(max_tokens=50))
    )
    assert (answer.text, answer.seed, answer.model) == (TEXT, 3, "bytes")
    assert [token.id for token in answer.tokens] == output(Script())
    assert answer.finish_reason == common_pb2.FINISH_REASON_STOP
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 14)
    assert list(answer.speculation.acceptance_histogram) == [0, 0, 1, 3]
    assert answer.speculation.mean_acceptance_length == 1 + 11 / 4


@pytest.mark.parametrize("given", ["mine", ""])
async def test_every_answer_and_refusal_has_its_request_id(stub: Any, given: str) -> None:
    metadata = (("x-request-id", given),) if given else ()
    answered = stub.Generate(pb.GenerateRequest(text="Say it"), metadata=metadata)
    await answered
    streamed = stub.StreamGenerate(pb.StreamGenerateRequest(request=pb.GenerateRequest(text="a")), metadata=metadata)
    assert [event async for event in streamed]
    refused = stub.Generate(pb.GenerateRequest(), metadata=metadata)
    with pytest.raises(grpc.aio.AioRpcError):
        await refused
    ids = [dict(await call.trailing_metadata())["x-request-id"] for call in (answered, streamed, refused)]
    assert ids == [given] * 3 if given else len({*ids, ""}) == 4


async def test_a_stream_is_started_rounds_finished(stub: Any) -> None:
    request = pb.GenerateRequest(tokens=pb.TokenPrompt(token_ids=list(b"Say it")))
    events = [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request))]
    assert [event.WhichOneof("event") for event in events] == ["started", *["round"] * 4, "finished"]
    assert bytes(events[0].started.prompt_token_ids) == b"Say it"
    assert "".join(event.round.text for event in events) == TEXT
    assert events[1].round.tokens[0].origin == common_pb2.TOKEN_ORIGIN_ACCEPTED
    assert (events[4].round.drafted, events[4].round.accepted) == (3, 2)
    assert [token.text for token in events[4].round.rejected] == ["A"]
    assert events[-1].finished.speculation.num_spec_steps == 4


async def test_several_choices_are_told_apart(here: Stage, stub: Any) -> None:
    request = pb.GenerateRequest(text="Say it", n=3, sampling=pb.SamplingOptions(seed=3))
    answer = await stub.Generate(request)
    assert [choice.text for choice in answer.choices] == [TEXT] * 3
    assert [[token.id for token in choice.tokens] for choice in answer.choices] == [output(Script())] * 3
    assert {choice.finish_reason for choice in answer.choices} == {common_pb2.FINISH_REASON_STOP}
    assert (answer.text, answer.usage.prompt_tokens, answer.usage.completion_tokens) == (TEXT, 6, 3 * 14)
    assert answer.speculation.num_spec_steps == 3 * 4
    assert sorted(call.sampling.seed for call in here.verifier.calls) == [3, 4, 5]
    texts, ended = {0: "", 1: "", 2: ""}, []
    async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request)):
        texts[event.round.choice] += event.round.text
        ended += [event.finished.choice] if event.HasField("finished") else []
    assert texts == dict.fromkeys(range(3), TEXT)
    assert sorted(ended) == [0, 1, 2]


async def test_several_choices_are_resumed_from_where_each_was(stub: Any) -> None:
    request = pb.GenerateRequest(text="Say it", n=2)
    started, *_ = [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request))]
    asked = pb.ResumeGenerationRequest(id=started.started.id, received_of_choices=[2, 5])
    texts = {0: "", 1: ""}
    async for event in stub.ResumeGeneration(asked):
        texts[event.round.choice] += event.round.text
    assert texts == {0: TEXT[2:], 1: TEXT[5:]}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(aiter(stub.ResumeGeneration(pb.ResumeGenerationRequest(id=started.started.id, received=1))))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("asking", [{}, {"resumable": True}, {"request": pb.GenerateRequest(request_id="a key")}])
async def test_a_stream_that_is_left_ends_unless_its_caller_can_come_back(asking: dict[str, Any]) -> None:
    async with stage(grace=3600.0) as here, grpc.aio.insecure_channel(here.gateway.grpc) as channel:
        here.verifier.script = Script(text="x" * 200, gamma=0, pause=0.005)  # takes a second or more to finish
        message = pb.StreamGenerateRequest(**asking)
        message.request.text, message.request.stop.max_tokens = "Say it", 200
        call = pb_grpc.GenerationServiceStub(channel).StreamGenerate(message)
        assert [(await call.read()).WhichOneof("event") for _ in range(2)] == ["started", "round"]
        call.cancel()
        if asking:
            await asyncio.sleep(1.0)
            assert here.verifier.cancelled == 0
        else:
            await until(lambda: here.verifier.cancelled == 1)


async def test_the_class_asked_for_is_used_and_reported(here: Stage, stub: Any) -> None:
    usual = await stub.Generate(pb.GenerateRequest(text="Say it"))
    first = await stub.Generate(pb.GenerateRequest(text="Say it", priority=common_pb2.PRIORITY_CLASS_PRIORITY))
    assert usual.priority == common_pb2.PRIORITY_CLASS_DEFAULT
    assert first.priority == common_pb2.PRIORITY_CLASS_PRIORITY
    request = pb.StreamGenerateRequest(
        request=pb.GenerateRequest(text="Say it", priority=common_pb2.PRIORITY_CLASS_FLEX, cache_salt="mine")
    )
    started, *_ = [event async for event in stub.StreamGenerate(request)]
    assert started.started.priority == common_pb2.PRIORITY_CLASS_FLEX
    assert [call.priority for call in here.verifier.calls] == [0, -1, 1]
    assert [bool(call.cache_salt) for call in here.verifier.calls] == [False, False, True]


async def test_greedy_and_zero_values_are_not_taken_for_absent(here: Stage, stub: Any) -> None:
    options = pb.SamplingOptions(temperature=0, seed=0, top_k=0)
    await stub.Generate(pb.GenerateRequest(text="Say it", sampling=options, stop=pb.StopOptions(max_tokens=9)))
    (call,) = here.verifier.calls
    assert (call.sampling.temperature, call.sampling.seed, call.max_tokens) == (0.0, 0, 9)


@pytest.mark.parametrize(
    ("request_", "code", "reason", "field"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_REQUIRED", "prompt"),
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_REQUIRED", "prompt"),
        ({"tokens": {}}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_REQUIRED", "prompt"),
        ({"chat": {}}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_REQUIRED", "messages"),
        (
            {"chat": {"messages": [{"role": "x", "content": "y"}]}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "FIELD_INVALID",
            "messages[0].role",
        ),
        ({"text": "x" * 300}, grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED", "prompt"),
        ({"tokens": {"token_ids": [EOS + 1]}}, grpc.StatusCode.INVALID_ARGUMENT, "TOKEN_OUT_OF_RANGE", "prompt"),
        ({"sampling": {"temperature": "NaN"}}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "temperature"),
        ({"sampling": {"temperature": -1}}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "temperature"),
        ({"sampling": {"top_p": -1}}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "top_p"),
        ({"stop": {"max_tokens": 0}}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "max_tokens"),
        ({"stop": {"stop": [""]}}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "stop"),
        ({"speculation": {"gamma": 9}}, grpc.StatusCode.INVALID_ARGUMENT, "GAMMA_TOO_LARGE", "speculation.gamma"),
        ({"speculation": {"mode": 99}}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "speculation.mode"),
        ({"priority": 99}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "priority"),
        ({"cache_salt": "a" * 257}, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID", "cache_salt"),
        ({"model": "other"}, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", "model"),
    ],
)
async def test_bad_input_is_refused_by_field_and_the_next_call_works(
    stub: Any, request_: dict[str, Any], code: grpc.StatusCode, reason: str, field: str
) -> None:
    prompt = {} if not request_ or {"text", "tokens", "chat"} & set(request_) else {"text": "Say it"}
    message = ParseDict(prompt | request_, pb.GenerateRequest())
    for call in (stub.Generate(message), aiter(stub.StreamGenerate(pb.StreamGenerateRequest(request=message)))):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (anext(call) if hasattr(call, "__anext__") else call)
        assert refused.value.code() is code
        assert details(refused.value) == (reason, "specdec", field)
    assert (await stub.Generate(pb.GenerateRequest(text="Say it"))).text == TEXT


def details(error: grpc.aio.AioRpcError) -> tuple[str, str, str]:
    """Return reason, domain and violated field of a rich status."""
    status = rpc_status.from_call(error)
    info, violations = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(violations)
    return info.reason, info.domain, violations.field_violations[0].field


@pytest.mark.parametrize(
    "raw",
    [
        pb.GenerateRequest(text="aa").SerializeToString().replace(b"aa", b"\xff\xfe"),
        pb.GenerateRequest(text="Say it").SerializeToString()[:-2],
    ],
)
async def test_bytes_that_are_no_message_are_the_callers_mistake(
    channel: grpc.aio.Channel, stub: Any, raw: bytes
) -> None:
    call = channel.unary_unary(
        "/specdec.gateway.v1.GenerationService/Generate",
        request_serializer=lambda request: request,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(raw)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await stub.Generate(pb.GenerateRequest(text="Say it"))).text == TEXT


@pytest.mark.parametrize("size", [65536, 17 * 2**20])
async def test_a_message_that_is_too_large_is_refused_and_the_next_call_works(stub: Any, size: int) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(pb.GenerateRequest(text="x" * size))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    if size < 2**20:
        assert isinstance(from_rpc_error(refused.value), MessageTooLarge)
    assert (await stub.Generate(pb.GenerateRequest(text="Say it"))).text == TEXT


async def test_a_cancelled_call_cancels_the_verifier(here: Stage, stub: Any) -> None:
    here.verifier.script = Script(text="x" * 200, pause=0.05)
    call = stub.StreamGenerate(pb.StreamGenerateRequest(request=pb.GenerateRequest(text="Say it")))
    while (await call.read()).WhichOneof("event") != "round":
        pass
    call.cancel()
    await until(lambda: here.verifier.cancelled == 1)
    await until(lambda: here.store.only.owner == "")


async def test_the_deadline_is_carried_to_the_verifier(here: Stage, stub: Any) -> None:
    here.verifier.script = Script(text="x" * 200, pause=0.05)
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await stub.Generate(pb.GenerateRequest(text="Say it"), timeout=0.3)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: here.verifier.cancelled == 1)


async def test_tokens_and_models_can_be_looked_at(stub: Any, channel: grpc.aio.Channel) -> None:
    tokens = await stub.Tokenize(pb.TokenizeRequest(text="hi"))
    assert (list(tokens.token_ids), tokens.context_length) == ([104, 105], 256)
    assert (await stub.Detokenize(pb.DetokenizeRequest(token_ids=[104, 105]))).text == "hi"
    models: Any = pb_grpc.ModelServiceStub(channel)
    assert [model.id for model in (await models.ListModels(pb.ListModelsRequest())).models] == ["bytes"]
    assert (await models.GetModel(pb.GetModelRequest(model="bytes"))).model.gamma_max == 8
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await models.GetModel(pb.GetModelRequest(model="other"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_follows_readiness(here: Stage, channel: grpc.aio.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)

    async def serving(service: str) -> bool:
        reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def becomes(expected: bool) -> None:
        async with asyncio.timeout(20):
            while await serving("specdec.gateway.v1.GenerationService") is not expected:  # noqa: ASYNC110 - health is asked
                await asyncio.sleep(0.01)

    await becomes(True)
    here.store.down = True
    await becomes(False)
    here.store.down = False
    await becomes(True)
    await here.gateway.drain()
    await becomes(False)
