"""OpenAI's client calls tools: text of a model becomes calls, whole and in a stream."""

import json
from typing import Any

import openai
import pytest

from tests.gateway_fakes import Script
from tests.integration.gateway.stage import Stage

WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TIME: Any = {"type": "function", "function": {"name": "time"}}
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
ASK: Any = {"model": "bytes", "messages": [{"role": "user", "content": "?"}], "tools": [WEATHER, TIME]}


async def test_calls_are_answered_in_openai_s_shape(here: Stage) -> None:
    here.verifier.script = Script(text=CALLS)
    choice = (await here.client.chat.completions.create(**ASK)).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls: Any = choice.message.tool_calls
    assert [(each.function.name, json.loads(each.function.arguments)) for each in calls] == [
        ("weather", {"city": "Ulm"}),
        ("time", {}),
    ]
    assert len({each.id for each in calls}) == 2


async def test_a_stream_has_the_text_and_then_the_calls(here: Stage) -> None:
    here.verifier.script = Script(text=f"Well. {CALLS}")
    text, names, finish = "", [], None
    async for chunk in await here.client.chat.completions.create(**ASK, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            names += [(call.index, call.function.name) for call in choice.delta.tool_calls or () if call.function]
            finish = choice.finish_reason or finish
    assert (text.strip(), names, finish) == ("Well.", [(0, "weather"), (1, "time")], "tool_calls")


async def test_text_without_a_call_stays_text(here: Stage) -> None:
    choice = (await here.client.chat.completions.create(**ASK)).choices[0]
    assert (choice.message.content, choice.finish_reason) == (Script().text, "stop")
    assert choice.message.tool_calls is None


async def test_no_call_is_read_where_none_may_be(here: Stage) -> None:
    here.verifier.script = Script(text=CALLS)
    choice = (await here.client.chat.completions.create(**ASK, tool_choice="none")).choices[0]
    assert choice.message.content == CALLS


@pytest.mark.parametrize(
    ("choice", "parts"),
    [
        ("required", ["weather", "time"]),
        ({"type": "function", "function": {"name": "time"}}, ["time"]),
        ("auto", []),
    ],
)
async def test_a_call_that_must_be_is_a_grammar(here: Stage, choice: Any, parts: list[str]) -> None:
    here.verifier.script = Script(text=CALLS)
    await here.client.chat.completions.create(**ASK, tool_choice=choice)
    grammar = here.verifier.calls[-1].sampling.grammar
    assert (grammar is None) == (not parts)
    assert all(f'{{\\"name\\": \\"{part}\\"' in grammar.text for part in parts if grammar)
    assert grammar is None or ("weather" in grammar.text) == ("weather" in parts)


async def test_strict_tools_bind_the_model_and_let_it_speak(here: Stage) -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    await here.client.chat.completions.create(**(ASK | {"tools": [strict]}))
    grammar = here.verifier.calls[-1].sampling.grammar
    assert grammar is not None
    assert "TEXT" in grammar.text


async def test_what_a_tool_answered_goes_back_to_the_model(here: Stage) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    messages: Any = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    await here.client.chat.completions.create(model="bytes", messages=messages, tools=[TIME])
    assert b"tool: noon" in bytes(here.verifier.calls[-1].tokens)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(here: Stage, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await here.client.chat.completions.create(**(ASK | fields))
    assert refused.value.param == param
