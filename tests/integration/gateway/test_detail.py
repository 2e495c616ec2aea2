"""A request with `detail` gets a report of each round, over both APIs and in every form of an answer."""

import json
from typing import Any

import grpc
import httpx2
import pytest
from google.protobuf.json_format import MessageToDict

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import Script

TEXT = Script().text
DRAFTED = [3, 3, 3, 3]
COMPLETION: dict[str, Any] = {"prompt": "hi", "max_tokens": 50}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
DETAIL = {"speculation": {"detail": True}}


async def post(here: Stage, path: str, body: dict[str, Any]) -> Any:
    async with httpx2.AsyncClient(timeout=30) as client:
        answer = await client.post(here.url + path, json=body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return answer.json()
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(event) for event in events]


def told(rounds: list[dict[str, Any]]) -> tuple[str, list[int], bool]:
    """Return the rounds' text, the lengths of their drafts, and whether u and threshold match each verdict."""
    text = "".join(token["text"] for each in rounds for token in each["tokens"])
    drafted = [token for each in rounds for token in each["drafted"]]
    agrees = all(token["accepted"] == (token["u"] < token["threshold"]) for token in drafted)
    return text, [len(each["drafted"]) for each in rounds], agrees


@pytest.mark.parametrize(("path", "asked"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
async def test_over_http(here: Stage, path: str, asked: dict[str, Any]) -> None:
    whole = await post(here, path, asked | DETAIL)
    chunks = await post(here, path, asked | DETAIL | {"stream": True})
    streamed = [each for chunk in chunks for choice in chunk["choices"] for each in choice.get("rounds", [])]
    for rounds in (whole["choices"][0]["rounds"], streamed):
        assert told(rounds) == (TEXT, DRAFTED, True)
        assert [each["accepted"] for each in rounds] == [3, 3, 3, 2]
        assert rounds[0]["gamma_reason"] == "fixed"
    assert "rounds" not in json.dumps(await post(here, path, asked))


async def test_every_choice_has_rounds_of_its_own(here: Stage) -> None:
    answer = await post(here, "/v1/completions", COMPLETION | DETAIL | {"n": 2})
    assert [told(choice["rounds"]) for choice in answer["choices"]] == [(TEXT, DRAFTED, True)] * 2


async def test_rounds_whose_text_is_held_back_come_with_a_later_chunk(here: Stage) -> None:
    chunks = await post(here, "/v1/completions", COMPLETION | DETAIL | {"stream": True, "stop": [TEXT + "!"]})
    rounds = [each for chunk in chunks for each in chunk["choices"][0].get("rounds", [])]
    assert told(rounds) == (TEXT, DRAFTED, True)


async def test_over_grpc(channel: grpc.aio.Channel) -> None:
    stub: Any = pb_grpc.GenerationServiceStub(channel)
    request = pb.GenerateRequest(text="hi", speculation=pb.SpeculationOptions(detail=True))
    whole = await stub.Generate(request)
    events = [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request))]
    streamed = [event.round.report for event in events if event.HasField("round")]
    for rounds in (whole.rounds, streamed):
        shown = [
            MessageToDict(each, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            for each in rounds
        ]
        assert told(shown) == (TEXT, DRAFTED, True)
    silent = await stub.Generate(pb.GenerateRequest(text="hi"))
    assert not silent.rounds
