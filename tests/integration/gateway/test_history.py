"""The gateway accepts its own answers as history: answers of every shape are sent back over HTTP and gRPC."""

import json
import random
from typing import Any

import grpc
import httpx2
import pytest
from openai import LengthFinishReasonError

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.stage import Stage, stage
from tests.integration.gateway.writing_tool import CALL, WRITE
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts

TEXTS = (
    "",
    "Well.",
    CALL,
    f"Well. {CALL}",
    f"{CALL}\n{CALL}",
    f"{CALL} and",
    '<tool_call>{"name": "x"',
    "<think>so</think>",
)
LONG = 40_000


def changed(message: dict[str, Any], drawn: random.Random) -> dict[str, Any]:
    """Return the message with changes that clients make when they store it."""
    message = json.loads(json.dumps(message))
    extras: dict[str, Any] = {
        "name": drawn.choice([None, "ann"]),
        "refusal": None,
        "annotations": drawn.choice([None, []]),
        "audio": None,
        "function_call": None,
        "parsed": drawn.choice([None, {"a": 1}]),
        "reasoning": drawn.choice([None, "so"]),
        "reasoning_content": drawn.choice([None, "so"]),
        "cache_control": {"type": "ephemeral"},
        "unheard_of": None,
    }
    message |= {name: value for name, value in extras.items() if drawn.random() < 0.5}
    if message["content"] is not None and drawn.random() < 0.3:
        message["content"] = [{"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}]
    if not message["content"] and drawn.random() < 0.5:
        message.pop("content")
    for call in message.get("tool_calls") or ():
        given = call["function"]["arguments"]
        call["function"]["arguments"] = drawn.choice([given, given, given[: drawn.randrange(len(given) + 1)], None, {}])
        call["function"].update(drawn.choice([{}, {"parsed_arguments": None}]))
        call.update(drawn.choice([{}, {"index": 0}, {"extra": None}]))
    return message


async def answer(here: Stage, messages: list[dict[str, Any]], limit: int, streamed: bool) -> dict[str, Any]:
    """Return the assistant's next message, whole or joined from the chunks of a stream."""
    ask: Any = {"model": "bytes", "messages": messages, "tools": [WRITE], "max_tokens": limit}
    if not streamed:
        got = await here.client.chat.completions.create(**ask)
        whole: dict[str, Any] = got.choices[0].message.model_dump(exclude_unset=True)
        return whole
    async with here.client.chat.completions.stream(**ask) as stream:
        try:
            completion: Any = await stream.get_final_completion()
        except LengthFinishReasonError as cut:
            completion = cut.completion
    message: dict[str, Any] = completion.choices[0].message.model_dump()
    return message


@pytest.mark.parametrize("seed", range(4))
async def test_every_answer_is_accepted_back(seed: int) -> None:
    drawn = random.Random(seed)
    verifier = ScriptedVerifier(info=facts(context_length=LONG))
    async with stage(verifier) as here:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "go", "name": "ann"}]
        for _ in range(10):
            verifier.script = Script(text=drawn.choice(TEXTS), gamma=drawn.randrange(4))
            said = changed(await answer(here, messages, drawn.randrange(1, 160), drawn.random() < 0.5), drawn)
            messages.append(said)
            for call in said.get("tool_calls") or ():
                result = drawn.choice(["", "ok", None, [{"type": "text", "text": "ok"}], []])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if drawn.random() < 0.7:
                messages.append({"role": "user", "content": "and then?"})


async def test_every_answer_is_accepted_back_over_grpc() -> None:
    drawn = random.Random(1)
    verifier = ScriptedVerifier(info=facts(context_length=LONG))
    async with stage(verifier) as here, grpc.aio.insecure_channel(here.gateway.grpc) as channel:
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        talk = [pb.ChatMessage(role="user", content="go", name="ann")]
        for _ in range(20):
            verifier.script = Script(text=drawn.choice(TEXTS))
            request = pb.GenerateRequest(chat=pb.ChatPrompt(messages=talk), tools=[pb.Tool(name="write")])
            request.stop.max_tokens = drawn.randrange(1, 160)
            said = (await stub.Generate(request)).message
            talk.append(
                pb.ChatMessage(role="assistant", content=said.content, tool_calls=said.tool_calls, reasoning="so")
            )
            talk += [pb.ChatMessage(role="tool", tool_call_id=each.id, name="write") for each in said.tool_calls]


@pytest.mark.parametrize(
    ("extra", "param"),
    [({"prefix_cache": 1}, "messages[0].prefix_cache"), ({"audio": {"id": "a"}}, "messages[0].audio")],
)
async def test_a_field_that_would_change_the_answer_is_refused(here: Stage, extra: Any, param: str) -> None:
    body = {"messages": [{"role": "user", "content": "go"} | extra]}
    async with httpx2.AsyncClient() as client:
        refused = await client.post(f"{here.url}/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
