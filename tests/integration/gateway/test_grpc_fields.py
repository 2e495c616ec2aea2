"""Fields of the HTTP API that the gRPC API has as well."""

import json
from typing import Any

import grpc
import pytest

from gateway.request import ChatPrompt
from gateway.rpc.tools import chat_prompt
from gateway.tools.values import Message
from specdec.errors import FieldInvalid
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.serving.rpc.status import from_rpc_error
from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import Script

TEXT = Script().text
TALK = [pb.ChatMessage(role="user", content="hi")]


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return pb_grpc.GenerationServiceStub(channel)


async def test_a_stop_string_is_shown_where_it_is_asked_for(stub: Any) -> None:
    for shown, text in ((False, "Hello"), (True, "Hello, w")):
        stop = pb.StopOptions(stop=[", w"], include_stop_str_in_output=shown)
        answer = await stub.Generate(pb.GenerateRequest(text="x", stop=stop))
        assert (answer.text, answer.matched_stop) == (text, ", w")
    for choice in (await stub.Generate(pb.GenerateRequest(text="x", stop=stop, n=2))).choices:
        assert choice.matched_stop == ", w"
    assert not (await stub.Generate(pb.GenerateRequest(text="x"))).matched_stop


async def test_special_tokens_are_shown_where_they_are_asked_for(stub: Any) -> None:
    special = pb.GenerateRequest(text="x", stop=pb.StopOptions(ignore_eos=True), skip_special_tokens=False)
    assert (await stub.Generate(special)).text == TEXT + "<end>"
    special.skip_special_tokens = True
    assert (await stub.Generate(special)).text == TEXT


async def test_a_prompt_is_cut_to_its_last_tokens(here: Stage, stub: Any) -> None:
    await stub.Generate(pb.GenerateRequest(text="Say it", truncate_prompt_tokens=2))
    await stub.Generate(pb.GenerateRequest(text="Say it", truncate_prompt_tokens=-1, add_special_tokens=False))
    assert [bytes(call.tokens) for call in here.verifier.calls] == [b"it", b"Say it"]


async def test_negative_seeds_are_seeds(here: Stage, stub: Any) -> None:
    for _ in range(2):
        await stub.Generate(pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(seed=-7)))
    first, second = (call.sampling.seed for call in here.verifier.calls)
    assert first == second >= 0


def test_a_chat_says_what_its_template_takes() -> None:
    prompt = chat_prompt(
        pb.ChatPrompt(
            messages=TALK, chat_template_kwargs='{"a": [1]}', reasoning_effort="none", thinking_token_budget=5
        )
    )
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_arguments == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "thinking": False,
        "thinking_budget": 5,
        "a": [1],
    }


@pytest.mark.parametrize(
    "given", [{"chat_template_kwargs": "[]"}, {"chat_template_kwargs": "{"}, {"reasoning_effort": "x"}]
)
def test_what_makes_no_sense_is_refused(given: Any) -> None:
    (name,) = given
    with pytest.raises(FieldInvalid) as caught:
        chat_prompt(pb.ChatPrompt(messages=TALK, **given))
    assert caught.value.param == name


async def test_a_budget_is_refused_where_the_thinking_is_not_known(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(pb.GenerateRequest(chat=pb.ChatPrompt(messages=TALK, thinking_token_budget=5)))
    assert getattr(from_rpc_error(caught.value), "param", "") == "thinking_token_budget"


def test_a_chat_has_documents_and_may_begin_like_a_text() -> None:
    documents = [pb.Document(texts={"title": "a", "text": "b"}), pb.Document(texts={"text": "c"})]
    prompt = chat_prompt(pb.ChatPrompt(messages=TALK, documents=documents), special=True)
    assert (prompt.documents, prompt.special) == (({"title": "a", "text": "b"}, {"text": "c"}), True)
    assert chat_prompt(pb.ChatPrompt(messages=TALK)) == ChatPrompt((Message("user", "hi"),))


async def test_white_space_and_other_properties_are_the_callers(here: Stage, stub: Any) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "object", "properties": {"properties": {}}}}}'
    form = pb.StructuredOutput(json_schema=schema, whitespace_pattern=" ?", disable_additional_properties=True)
    await stub.Generate(pb.GenerateRequest(text="x", structured_output=form))
    grammar = here.verifier.calls[-1].sampling.grammar
    assert grammar is not None
    found = json.loads(grammar.text)
    assert found["x-guidance"] == {"whitespace_pattern": " ?"}
    inner = found["properties"]["a"]
    assert (found["additionalProperties"], inner["additionalProperties"]) == (False, False)
    assert inner["properties"] == {"properties": {}}


async def test_tools_and_the_beginning_are_tokenized(stub: Any) -> None:
    talk = pb.ChatPrompt(messages=TALK)
    answer = await stub.Tokenize(pb.TokenizeRequest(chat=talk, tools=[pb.Tool(name="f")], add_special_tokens=True))
    assert bytes(answer.token_ids) == b"user: hi\n"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Tokenize(pb.TokenizeRequest(chat=talk, tools=[pb.Tool(name="f", parameters="[")]))
    assert getattr(from_rpc_error(caught.value), "param", "") == "tools[0].parameters"
