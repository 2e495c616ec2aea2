"""Long work of one request runs beside the event loop, so that no other request waits for it."""

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx2
import pytest

from gateway.http import routes
from gateway.http.replies.writers import CompletionWriter
from gateway.rpc import door, replies
from gateway.turns import generation
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts

LENGTH = 200
"""Output tokens of each answer."""
LONG = {"max_tokens": LENGTH, "logprobs": 20}


@pytest.fixture
async def here() -> AsyncIterator[Stage]:
    verifier = ScriptedVerifier(script=Script(tokens=(97,) * 1000), info=facts(context_length=65536))
    async with stage(verifier, max_body_bytes=2**20) as made:
        yield made


def threads_of(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Record the thread of each call of a function."""
    own, threads = getattr(owner, name), list[int]()

    def noted(*given: Any, **named: Any) -> Any:
        threads.append(threading.get_ident())
        return own(*given, **named)

    patch.setattr(owner, name, noted)
    return threads


async def posted(here: Stage, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with httpx2.AsyncClient(base_url=here.url, timeout=60) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    ("fields", "on_loop"),
    [
        ({"max_tokens": LENGTH}, True),
        (LONG, False),
        ({"prompt": "a" * 5000}, True),
        ({"prompt": "a" * 5000, "echo": True}, False),
        ({"prompt": "a" * 5000, "return_token_ids": True}, False),
    ],
    ids=["short", "log probabilities", "long prompt", "its echo", "its ids"],
)
async def test_a_long_answer_is_written_beside_the_loop(
    here: Stage, fields: dict[str, Any], on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threads_of(monkeypatch, CompletionWriter, "whole")
    answer = await posted(here, "/v1/completions", {"prompt": "a", "max_tokens": 2, **fields})
    assert [thread == threading.get_ident() for thread in threads] == [on_loop]
    assert answer["usage"]["completion_tokens"] == fields.get("max_tokens", 2)


async def test_a_long_answer_over_grpc_is_written_beside_the_loop(here: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threads_of(monkeypatch, replies, "whole")
    async with grpc.aio.insecure_channel(here.gateway.grpc) as channel:
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        for count in (0, 20):
            request = pb.GenerateRequest(text="a", stop=pb.StopOptions(max_tokens=LENGTH), logprobs=count)
            assert len((await stub.Generate(request)).tokens) == LENGTH
    assert [thread == threading.get_ident() for thread in threads] == [True, False]


async def test_a_large_grpc_message_is_parsed_beside_the_loop(here: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threads_of(monkeypatch, door, "overfull_field")
    async with grpc.aio.insecure_channel(here.gateway.grpc) as channel:
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        for size in (10, 60_000):
            request = pb.GenerateRequest(text="a" * 10_000, prediction="a" * size, stop=pb.StopOptions(max_tokens=2))
            assert len((await stub.Generate(request)).tokens) == 2
        messages = [pb.ChatMessage()] * 70_000
        with pytest.raises(grpc.aio.AioRpcError, match="messages: the message has over 65536 parts"):
            await stub.Generate(pb.GenerateRequest(chat=pb.ChatPrompt(messages=messages)))
    assert len(threads) == 2
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(("size", "on_loop"), [(100, True), (40_000, False)])
async def test_a_large_request_is_stored_beside_the_loop(
    here: Stage, size: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threads_of(monkeypatch, routes, "stored")
    tools = [{"type": "function", "name": "f", "description": "d" * size, "parameters": {}}]
    await posted(here, "/v1/responses", {"input": "a", "max_output_tokens": 2, "tools": tools})
    assert [thread == threading.get_ident() for thread in threads] == [on_loop]


@pytest.mark.parametrize(("count", "on_loop"), [(100, True), (40_000, False)])
async def test_a_long_prompt_is_checked_and_packed_beside_the_loop(
    here: Stage, count: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, packed = (threads_of(monkeypatch, generation, name) for name in ("make_call", "header_to_bytes"))
    await posted(here, "/v1/completions", {"prompt": [97] * count, "max_tokens": 2, "n": 2})
    assert [thread == threading.get_ident() for thread in (*checked, *packed)] == [on_loop] * 4


async def test_a_long_prompt_is_echoed_in_several_chunks(here: Stage) -> None:
    prompt = "abcdefgh" * 3000
    body = {"model": "bytes", "prompt": prompt, "max_tokens": 2, "echo": True, "stream": True}
    async with httpx2.AsyncClient(base_url=here.url, timeout=60) as client:
        for scored in ({}, {"logprobs": 1}):
            answer = await client.post("/v1/completions", json=body | scored)
            lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
            assert max(map(len, lines)) < 80_000
            chunks = [line for line in lines if '"choices":[{' in line]
            assert len(chunks) > 4
            assert "".join(_text(line) for line in chunks) == f"{prompt}aa"


def _text(line: str) -> str:

    choice: dict[str, Any] = json.loads(line.removeprefix("data: "))["choices"][0]
    return str(choice["text"])
