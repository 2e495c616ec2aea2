"""Structured outputs through the running system: a few of those that `benchmarks.structured` generates in thousands."""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from benchmarks.structured import SCHEMAS, run
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc
from specdec.serving.rpc.channel import open_channel
from tests.e2e.clients import client_of
from tests.e2e.system import System


def test_every_output_is_of_its_schema_in_every_mode(system: System) -> None:
    verdicts = run(system.http, range(2 * len(SCHEMAS)), at_once=8, max_tokens=48)
    assert set(verdicts) <= {"valid", "length"}
    assert verdicts["valid"] > verdicts.total() / 2


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_parses_an_answer_of_a_schema(system: System, stream: bool) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    asked: dict[str, Any] = {
        "model": client_of(system).models.list().data[0].id,
        "messages": [{"role": "user", "content": "is it?"}],
        "max_tokens": 80,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}},
    }
    client: OpenAI = client_of(system)
    if stream:
        chunks = client.chat.completions.create(**asked, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    else:
        text = client.chat.completions.create(**asked).choices[0].message.content or ""
    assert set(json.loads(text)) == {"ok"}


def test_a_grammar_that_cannot_be_compiled_is_a_400_that_says_where(system: System) -> None:
    schema = {"properties": {"a": {"items": {"type": "whole"}}}}
    with pytest.raises(BadRequestError) as refused:
        client_of(system).completions.create(model="demo", prompt="x", extra_body={"guided_json": schema})
    assert refused.value.param == "guided_json.properties.a.items"


async def test_grpc_takes_every_form(system: System) -> None:
    forms = [
        (pb.StructuredOutput(json_schema='{"enum": ["a", "b"]}'), {'"a"', '"b"'}),
        (pb.StructuredOutput(regex="[ab]"), {"a", "b"}),
        (pb.StructuredOutput(choice=pb.Choices(texts=["yes", "no"])), {"yes", "no"}),
        (pb.StructuredOutput(grammar='root ::= "a" | "b"'), {"a", "b"}),
    ]
    async with open_channel(system.grpc) as channel:
        stub: Any = gateway_pb2_grpc.GenerationServiceStub(channel)
        for form, texts in forms:
            request = pb.GenerateRequest(text="x", stop=pb.StopOptions(max_tokens=20), structured_output=form)
            assert (await stub.Generate(request)).text in texts


def test_a_call_of_a_tool_is_of_its_schema(system: System) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    tool: Any = {"type": "function", "function": {"name": "choose", "parameters": schema}}
    client = client_of(system)
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "which?"}],
        max_tokens=80,
        temperature=0,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (choice,) = answer.choices
    calls: Any = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert [(call.function.name, json.loads(call.function.arguments)["n"] in (1, 2)) for call in calls] == [
        ("choose", True)
    ]
