"""OpenAI's client calls tools: a model's text becomes calls, in whole answers and in streams."""

import json
import re
from typing import Any

import httpx2
import openai
import pytest

from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import Script

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


class Heard:
    """Calls and text that a client assembles from chunks: each call has an id and a name first, then more arguments."""

    def __init__(self) -> None:
        self.text, self.finish = "", None
        self.calls: dict[int, list[str]] = {}
        self.pieces = 0

    def take(self, choice: Any) -> None:
        self.text += choice["delta"].get("content") or ""
        self.finish = choice["finish_reason"] or self.finish
        for call in choice["delta"].get("tool_calls") or ():
            if "id" in call:
                assert call["index"] not in self.calls
                self.calls[call["index"]] = [call["id"], call["function"]["name"], ""]
            self.calls[call["index"]][2] += call["function"]["arguments"]
            self.pieces += 1

    @property
    def called(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for _, name, arguments in self.calls.values()]


CALLED = [("weather", {"city": "Ulm"}), ("time", {})]


async def test_a_stream_has_the_text_and_then_calls_in_parts(here: Stage) -> None:
    here.verifier.script = Script(text=f"Well. {CALLS}", gamma=1)
    heard = Heard()
    async for chunk in await here.client.chat.completions.create(**ASK, stream=True):
        for choice in chunk.model_dump(exclude_unset=True)["choices"]:
            heard.take(choice)
    assert (heard.text.strip(), heard.called, heard.finish) == ("Well.", CALLED, "tool_calls")
    assert len({call[0] for call in heard.calls.values()}) == 2
    assert heard.pieces > 6, "arguments come as they are written"


@pytest.mark.parametrize("at", [1, 3, 6])
async def test_who_comes_back_in_the_middle_of_a_call_gets_its_rest(here: Stage, at: int) -> None:
    here.verifier.script = Script(text=CALLS, gamma=1)
    heard, asked = Heard(), ASK | {"stream": True, "stream_options": {"resumable": True}}
    async with httpx2.AsyncClient(base_url=here.url, timeout=30) as client:
        events = _events((await client.post("/v1/chat/completions", json=asked)).text)
        for _, choice in events[:at]:
            heard.take(choice)
        last = events[at - 1][0]
        again = await client.get(f"/v1/generations/{last.split('.')[0]}/events", headers={"Last-Event-ID": last})
        for _, choice in _events(again.text):
            heard.take(choice)
    assert (heard.text, heard.called, heard.finish) == ("", CALLED, "tool_calls")


def _events(stream: str) -> list[tuple[str, Any]]:
    """Return the id and the choice of every event that has an id."""
    blocks = (re.fullmatch(r"id: (.*)\ndata: (\{.*)", block, re.DOTALL) for block in stream.split("\n\n"))
    return [(match[1], json.loads(match[2])["choices"][0]) for match in blocks if match]


async def test_arguments_that_were_cut_are_a_call_that_ended_at_the_limit(here: Stage) -> None:
    here.verifier.script = Script(text=CALLS)
    choice = (await here.client.chat.completions.create(**ASK, max_tokens=55)).choices[0]
    assert choice.finish_reason == "length"
    (call,) = choice.message.tool_calls or ()
    assert call.function.arguments == CALLS[:55].partition('"arguments": ')[2]


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


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_form_beside_tools_is_followed_where_there_is_no_call(here: Stage, choice: str) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": "form"}}}
    await here.client.chat.completions.create(**ASK, response_format=form, tool_choice=choice)
    grammar = here.verifier.calls[-1].sampling.grammar
    assert grammar is not None
    assert "weather" in grammar.text
    assert ('{"const": "form"' in grammar.text) == (choice == "auto")


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
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(here: Stage, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await here.client.chat.completions.create(**(ASK | fields))
    assert refused.value.param == param
