"""Anthropic's client uses /v1/messages: whole answers, events, calls, prefills, counts, errors, answers sent back."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import pytest

from gateway.http.messages_api.body import MessagesBody
from gateway.request import ChatPrompt
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script, ScriptedVerifier, ThinkingTokenizer, facts

CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
BASH: Any = {
    "name": "Bash",
    "description": "Run it.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "$schema": "http://json-schema.org/draft-07/schema#",
    },
    "cache_control": {"type": "ephemeral"},
}
USER: Any = [{"role": "user", "content": "hi"}]
AS_CLAUDE_CODE: Any = {
    "model": "bytes",
    "system": [{"type": "text", "text": "You edit files.", "cache_control": {"type": "ephemeral"}}],
    "tools": [BASH, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "metadata": {"user_id": "u"},
    "extra_body": {"temperature": 1.0, "context_management": {"edits": []}},
}


@pytest.fixture
async def client(here: Stage) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with of(here) as made:
        yield made


def of(here: Stage, **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(**{"base_url": here.url, "api_key": "none", "max_retries": 0} | options)


async def test_a_text_is_one_block(here: Stage, client: anthropic.AsyncAnthropic) -> None:
    here.verifier.script = Script(text="Hello.", cached=2)
    got = await client.messages.create(model="bytes", max_tokens=8_000, system="Be short.", messages=USER)
    assert [block.model_dump(exclude_none=True) for block in got.content] == [{"type": "text", "text": "Hello."}]
    assert (got.stop_reason, got.stop_sequence, got.role) == ("end_turn", None, "assistant")
    counted = await client.messages.count_tokens(model="bytes", system="Be short.", messages=USER)
    assert counted.input_tokens == len(b"system: Be short.\nuser: hi\n")
    assert (got.usage.input_tokens, got.usage.cache_read_input_tokens) == (counted.input_tokens - 2, 2)
    assert got.usage.output_tokens == 7


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"max_tokens": 3}, "max_tokens"), ({"max_tokens": 9, "stop_sequences": ["lo"]}, "stop_sequence")],
)
async def test_an_answer_says_why_it_ends(
    here: Stage, client: anthropic.AsyncAnthropic, fields: Any, reason: str
) -> None:
    here.verifier.script = Script(text="Hello.")
    got: Any = await client.messages.create(model="bytes", messages=USER, **fields)
    assert (got.stop_reason, got.content[0].text) == (reason, "Hel")


async def test_events_make_the_answer(here: Stage, client: anthropic.AsyncAnthropic) -> None:
    here.verifier.script = Script(text=f"Well. {CALL}", gamma=1)
    async with client.messages.stream(max_tokens=99, messages=USER, **AS_CLAUDE_CODE) as stream:
        kinds = list(dict.fromkeys([event.type async for event in stream]))
        final: Any = await stream.get_final_message()
    raw = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"]
    assert [kind for kind in kinds if kind.startswith(("message", "content"))] == [*raw, "message_stop"]
    text, call = final.content
    assert (text.text, call.type, call.name, call.input) == ("Well.", "tool_use", "Bash", {"command": "ls"})
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", len(f"Well. {CALL}") + 1)


@pytest.mark.parametrize("streamed", [False, True])
async def test_ten_turns_of_an_agent_with_cut_calls(streamed: bool) -> None:
    verifier = ScriptedVerifier(info=facts(context_length=40_000))
    async with stage(verifier) as here, of(here) as client:
        messages: list[Any] = [*USER]
        for turn in range(10):
            verifier.script = Script(text=f"Step. {CALL}" if turn % 3 else CALL)
            ask: Any = {**AS_CLAUDE_CODE, "messages": messages, "max_tokens": 1 + 10 * turn}
            if streamed:
                async with client.messages.stream(**ask) as stream:
                    got: Any = await stream.get_final_message()
            else:
                got = await client.messages.create(**ask)
            messages.append({"role": "assistant", "content": got.content})
            results: Any = [
                {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "ok"}]}
                for block in got.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": [*results, {"type": "text", "text": "on"}]})


@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_is_a_signed_block_that_is_accepted_back(streamed: bool) -> None:
    verifier = ScriptedVerifier(script=Script(text="<think>so</think>Well.", gamma=2))
    async with stage(verifier, tokenizer=ThinkingTokenizer()) as here, of(here) as client:
        ask: Any = {"model": "bytes", "max_tokens": 99, "messages": USER}
        if streamed:
            async with client.messages.stream(**ask) as stream:
                kinds = [event.delta.type async for event in stream if event.type == "content_block_delta"]
                got = await stream.get_final_message()
            assert list(dict.fromkeys(kinds)) == ["thinking_delta", "signature_delta", "text_delta"]
        else:
            got = await client.messages.create(**ask)
        thought, text = got.content
        assert (thought.type, text.type) == ("thinking", "text")
        assert (thought.thinking, bool(thought.signature), text.text) == ("so", True, "Well.")
        talk: Any = [*USER, {"role": "assistant", "content": got.content}, *USER]
        await client.messages.create(**ask | {"messages": talk})


async def test_thinking_and_errors_of_tools_are_accepted_back(here: Stage, client: anthropic.AsyncAnthropic) -> None:
    blocks = [
        {"type": "thinking", "thinking": "so", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "t", "name": "Bash", "input": {}},
    ]
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True}
    talk: Any = [*USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    await client.messages.create(max_tokens=1, messages=talk, thinking={"type": "disabled"}, **AS_CLAUDE_CODE)
    assert b"assistant: a\ntool: no\n" in bytes(here.verifier.calls[-1].tokens)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True, "thinking": True}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}},
            {"enable_thinking": True, "thinking": True, "thinking_budget": 1024},
        ),
        *(
            ({"output_config": {"effort": effort}}, {"reasoning_effort": effort})
            for effort in ("low", "medium", "high", "xhigh", "max")
        ),
    ],
)
def test_what_is_asked_of_the_thinking_goes_to_the_template(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    prompt = MessagesBody.parse({"max_tokens": 9, "messages": USER, **fields}).chat().request("r").prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_arguments == expected


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, anthropic.BadRequestError, None),
        ({"model": "nobody"}, anthropic.NotFoundError, "model"),
        ({"mcp_servers": [{"url": "x"}]}, anthropic.BadRequestError, "mcp_servers"),
        ({"tools": [{"type": "computer_20250124", "name": "c"}]}, anthropic.BadRequestError, "tools[0]"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
    ],
)
async def test_a_refusal_has_anthropic_s_form(
    client: anthropic.AsyncAnthropic, fields: Any, kind: type[anthropic.APIStatusError], param: str | None
) -> None:
    ask: Any = {"model": "bytes", "max_tokens": 1, "messages": USER, "extra_body": fields}
    with pytest.raises(kind) as refused:
        await client.messages.create(**ask)
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert param in (None, body["error"]["param"])


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/batches", 404), ("GET", "", 405)])
async def test_unknown_paths_have_anthropic_s_errors(here: Stage, method: str, path: str, status: int) -> None:
    async with httpx2.AsyncClient() as plain:
        refused = await plain.request(method, f"{here.url}/v1/messages{path}")
    assert (refused.status_code, refused.json()["type"]) == (status, "error")


async def test_a_begun_answer_is_continued_and_calls_are_chosen(here: Stage, client: anthropic.AsyncAnthropic) -> None:
    begun: Any = [*USER, {"role": "assistant", "content": "The answer is"}]
    await client.messages.create(model="bytes", max_tokens=1, messages=begun)
    for choice, forced in (("any", True), ("auto", False), ("none", False)):
        ask: Any = {**AS_CLAUDE_CODE, "tool_choice": {"type": choice}}
        await client.messages.create(max_tokens=1, messages=USER, **ask)
        assert (here.verifier.calls[-1].sampling.grammar is not None) is forced


async def test_the_form_of_the_answer_binds(client: Any, here: Stage) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    here.verifier.script = Script(text='{"a": 1}')
    more = {"output_config": {"effort": "max", "format": {"type": "json_schema", "schema": schema}}}
    await client.messages.create(
        model="bytes", max_tokens=20, messages=[{"role": "user", "content": "x"}], extra_body=more
    )
    grammar = here.verifier.calls[-1].sampling.grammar
    assert grammar is not None
    assert '"required": ["a"]' in grammar.text


@pytest.mark.parametrize("name", ["container", "mcp_servers", "fallbacks", "compaction"])
async def test_what_would_change_the_answer_is_refused_by_name(name: str, client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match=name):
        await client.messages.create(
            model="bytes", max_tokens=20, messages=[{"role": "user", "content": "x"}], extra_body={name: ["x"]}
        )
