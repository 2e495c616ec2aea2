"""Answers without the model's thinking, with `include_reasoning: false` of vLLM, in chats, Responses and over gRPC."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.stage import Stage, stage
from tests.integration.gateway.writing_tool import CALL, WRITE
from tests.support.gateway_fakes import Script, ScriptedVerifier, ThinkingTokenizer, facts

THOUGHT = "secret plans"
TEXT = f"<think>{THOUGHT}</think>Well. {CALL}"
CHAT: Any = {"model": "bytes", "messages": [{"role": "user", "content": "go"}], "tools": [WRITE]}
HIDDEN: Any = {"include_reasoning": False}


@pytest.fixture
async def here() -> AsyncIterator[Stage]:
    verifier = ScriptedVerifier(info=facts(context_length=4096), script=Script(text=TEXT, gamma=2))
    async with stage(verifier, tokenizer=ThinkingTokenizer()) as found:
        yield found


async def chatted(here: Stage, streamed: bool, **fields: Any) -> tuple[str, list[Any]]:
    """Return the JSON of an answer or its chunks, and the messages or their parts."""
    options = {"return_token_ids": True, "speculation": {"detail": True}}
    ask: Any = {**CHAT, "logprobs": True, "top_logprobs": 2, "extra_body": options | fields}
    answer: Any = await here.client.chat.completions.create(**ask, stream=streamed)
    parts = [each async for each in answer] if streamed else [answer]
    choices = [choice for each in parts for choice in each.choices]
    return "".join(each.model_dump_json() for each in parts), [c.delta if streamed else c.message for c in choices]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_chat_has_no_trace_of_the_thinking(here: Stage, streamed: bool) -> None:
    shown, _ = await chatted(here, streamed)
    hidden, messages = await chatted(here, streamed, **HIDDEN)
    assert ("reasoning" in shown, "reasoning" in hidden) == (True, False)
    assert ("token_ids" in shown, '"token_ids"' in hidden) == (True, False)
    assert ('"top_logprobs"' in shown, '"top_logprobs"' in hidden) == (True, False)
    assert ('"rounds"' in shown, '"rounds"' in hidden) == (True, False)
    assert "".join(each.content or "" for each in messages) == "Well."
    calls = [call for each in messages for call in each.tool_calls or ()]
    assert calls[0].function.name == "write"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_has_no_item_of_thinking(here: Stage, streamed: bool) -> None:
    ask: Any = {"model": "bytes", "input": "go"}
    kinds = []
    for more in ({}, HIDDEN):
        answer: Any = await here.client.responses.create(**ask, stream=streamed, extra_body=more)
        response = [event async for event in answer][-1].response if streamed else answer
        kinds.append([item.type for item in response.output])
    assert kinds == [["reasoning", "message"], ["message"]]


async def test_messages_over_grpc_have_none_and_resume_without(here: Stage) -> None:
    async with grpc.aio.insecure_channel(here.gateway.grpc) as channel:
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        for shown in (True, False):
            talk = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="go")], include_reasoning=shown)
            request = pb.GenerateRequest(chat=talk)
            answer = await stub.Generate(request)
            assert answer.message.reasoning == (THOUGHT if shown else "")
            assert THOUGHT in answer.text
            events = stub.StreamGenerate(pb.StreamGenerateRequest(request=request, resumable=True))
            name = (await anext(aiter(events))).started.id
            resumed = [event async for event in stub.ResumeGeneration(pb.ResumeGenerationRequest(id=name))]
            parts = [event.round.message.reasoning for event in resumed] + [resumed[-1].finished.message.reasoning]
            assert "".join(parts) == (THOUGHT if shown else "")
