"""Fields sent by agents over HTTP and gRPC: clamped bounds, seeds, partial answers, single calls, results."""

from typing import Any

import grpc
import httpx2
import pytest
from transformers import AutoTokenizer

from gateway.request import ChatPrompt, TextPrompt
from gateway.text.tokenizer import ModelTokenizer
from gateway.tools.values import Message, ToolCall
from specdec.errors import FieldInvalid
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.stage import Stage, stage
from tests.integration.gateway.writing_tool import CALL, WRITE
from tests.support.gateway_fakes import CONTEXT, EOS, Script, ScriptedVerifier, facts

DEMO = "models/demo/target"
USER = [{"role": "user", "content": "hi"}]
BEGUN = [*USER, {"role": "assistant", "content": "The colour is "}]
STRICT = (
    "{% set ns = namespace(call='') %}{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if not ns.call %}{{ raise_exception('no call before') }}{% endif %}[{{ ns.call }}={{ m.content }}]"
    "{% else %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function | tojson }}{% set ns.call = c.function.name %}{% endfor %}</>{% endif %}{% endfor %}"
    "{% if tools %}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


async def asked(here: Stage, path: str, **body: Any) -> tuple[int, Any]:
    async with httpx2.AsyncClient() as client:
        got = await client.post(f"{here.url}{path}", json=body, timeout=30)
        return got.status_code, got.json()


@pytest.mark.parametrize("limit", [CONTEXT, 32_000, 2**31, 2**40, -1])
async def test_max_tokens_over_the_room_are_lowered_to_it(here: Stage, limit: int) -> None:
    for path, prompt in (("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": USER})):
        status, answer = await asked(here, path, max_tokens=limit, **prompt)
        assert status == 200, answer
        assert here.verifier.calls[-1].max_tokens == CONTEXT - answer["usage"]["prompt_tokens"]


async def test_max_tokens_over_the_room_are_refused_on_request() -> None:
    async with stage(max_tokens_over_room="refuse") as here:
        status, answer = await asked(here, "/v1/completions", prompt="hi", max_tokens=CONTEXT)
        assert (status, answer["error"]["param"]) == (400, "max_tokens")
        assert (await asked(here, "/v1/completions", prompt="hi", max_tokens=-1))[0] == 200


async def test_top_p_zero_is_greedy_and_seeds_may_be_negative(here: Stage) -> None:
    await asked(here, "/v1/completions", prompt="hi", top_p=0, seed=-5)
    sampling = here.verifier.calls[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0, 1, 2**63 - 5)
    async with grpc.aio.insecure_channel(here.gateway.grpc) as channel:
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        options = pb.SamplingOptions(top_p=0, seed=-5)
        answer = await stub.Generate(pb.GenerateRequest(text="hi", sampling=options))
        assert (here.verifier.calls[-1].sampling.temperature, answer.seed) == (0, 2**63 - 5)
        drawn = [await stub.Generate(pb.GenerateRequest(text="hi", sampling=pb.SamplingOptions(seed=-1))) for _ in "ab"]
        assert drawn[0].seed != drawn[1].seed


async def test_one_call_where_parallel_calls_are_off(here: Stage) -> None:
    here.verifier.script = Script(text=f"{CALL}\n{CALL}")
    for parallel, count in ((True, 2), (False, 1)):
        fields = {"messages": USER, "tools": [WRITE], "parallel_tool_calls": parallel}
        _, answer = await asked(here, "/v1/chat/completions", **fields)
        assert len(answer["choices"][0]["message"]["tool_calls"]) == count


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
        {"messages": USER, "continue_final_message": True},
    ],
)
async def test_an_answer_that_cannot_be_continued_is_refused(here: Stage, fields: dict[str, Any]) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        status, answer = await asked(here, path, **fields)
        assert (status, answer["error"]["param"]) == (400, "continue_final_message")


def tokenizer(template: str) -> ModelTokenizer:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.chat_template = template
    return ModelTokenizer(inner)


def test_an_answer_begun_by_the_caller_keeps_its_spaces() -> None:
    prompt = ChatPrompt((Message("user", "hi"), Message("assistant", "The colour is ")))
    known = tokenizer(STRICT)
    assert known.decode(known.encode(prompt.opened(None, True))).endswith("<assistant>The colour is ")
    assert known.decode(known.encode(prompt.opened(False, False))).endswith("The colour is </>")
    assert known.decode(known.encode(prompt)).endswith("</><assistant>")


def test_a_result_is_a_turn_as_the_template_renders_it_in_a_chat() -> None:
    known, call = tokenizer(STRICT), ToolCall("f", '{"a": 1}', "c1")
    user, said, result = Message("user", "go"), Message("assistant", "", (call,)), Message("tool", "42", (), "c1")
    whole = known.decode(known.encode(ChatPrompt((user, said, result))))
    history = known.encode(ChatPrompt((user,)))
    output = known.encode(TextPrompt('{"name": "f", "arguments": {"a": 1}}'))
    added = known.encode_after(ChatPrompt((result,), called=(call,)), (*history, *output))
    assert known.decode((*history, *output, *added)) == whole


def test_whatever_a_template_raises_is_the_callers_to_know() -> None:
    with pytest.raises(FieldInvalid, match="division"):
        tokenizer("{{ 1 // (messages | length - 1) }}").encode(ChatPrompt((Message("user", "x"),)))


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, (EOS, 7)),
        ({"stop": ["x"]}, (EOS, 7)),
        ({"stop": ["x", "\n<end>"]}, (EOS,)),
        ({"stop": ["<end>"], "response_format": {"type": "json_object"}}, (EOS, 7)),
        ({"stop": ["<end>"], "ignore_eos": True}, ()),
        ({"stop": ["<end>"], "stop_token_ids": [7]}, (EOS, 7)),
    ],
)
async def test_a_caller_who_stops_at_special_tokens_chooses_where_turns_end(fields: Any, ends: Any) -> None:
    info = facts(end_token_ids=(EOS, 7), turn_end_token_ids=(7,), grammars=True)
    async with stage(ScriptedVerifier(info=info)) as here:
        status, answer = await asked(here, "/v1/chat/completions", messages=USER, **fields)
    assert status == 200, answer
    assert here.verifier.calls[-1].stop_token_ids == ends
