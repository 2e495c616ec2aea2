"""OpenAI's client calls custom tools, such as Codex's `apply_patch`, over Responses and chats, whole and as events."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts

PATCH = '*** Begin Patch\n*** Delete File: "é".py\n*** End Patch\n'
ARGUMENTS = json.dumps({"input": PATCH}, ensure_ascii=False)
CALL = f'<tool_call>\n{{"name": "apply_patch", "arguments": {ARGUMENTS}}}\n</tool_call>'
LARK = 'start: "*** Begin Patch" LF /(.*)/ LF "*** End Patch" LF?\n%import common.LF'
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": LARK}
TOOL: Any = {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": GRAMMAR}
IN_CHAT: Any = {
    "type": "custom",
    "custom": {
        "name": "apply_patch",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}},
    },
}
ASK: Any = {"model": "bytes", "input": "go", "tools": [TOOL]}
CHAT: Any = {"model": "bytes", "messages": [{"role": "user", "content": "go"}], "tools": [IN_CHAT]}


@pytest.fixture
async def here() -> AsyncIterator[Stage]:
    async with stage(ScriptedVerifier(info=facts(context_length=4096))) as found:
        yield found


async def test_a_whole_response_has_the_input(here: Stage) -> None:
    here.verifier.script = Script(text=f"Well. {CALL}")
    got = await here.client.responses.create(**ASK)
    _, call = got.output
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("apply_patch", PATCH)
    grammar = here.verifier.calls[-1].sampling.grammar
    assert grammar is not None
    assert "TEXT" in grammar.text


async def test_events_carry_the_input(here: Stage) -> None:
    here.verifier.script = Script(text=CALL, gamma=1)
    async with here.client.responses.stream(**ASK) as stream:
        events: list[Any] = [event async for event in stream]
        final: Any = await stream.get_final_response()
    assert [each.type for each in final.output] == ["custom_tool_call"]
    deltas = [event for event in events if event.type == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert len(deltas) > 5
    assert "".join(event.delta for event in deltas) == done.input == final.output[0].input == PATCH
    assert {event.item_id for event in (*deltas, done)} == {final.output[0].id}


@pytest.mark.parametrize("streamed", [False, True])
async def test_ten_turns_with_cut_calls_are_accepted_back(here: Stage, streamed: bool) -> None:
    history: list[Any] = [{"role": "user", "content": "go"}]
    for turn in range(10):
        here.verifier.script = Script(text=CALL)
        ask: Any = {**ASK, "input": history, "max_output_tokens": 40 + 10 * turn}
        if streamed:
            stream = await here.client.responses.create(**ask, stream=True)
            last: Any = [event async for event in stream][-1]
            got = last.response
        else:
            got = await here.client.responses.create(**ask)
        (item,) = got.output
        if item.type == "custom_tool_call":
            assert PATCH.startswith(item.input)
        history = [{"role": "user", "content": "go"}, item.model_dump()]
        if item.type == "custom_tool_call":
            history.append({"type": "custom_tool_call_output", "call_id": item.call_id, "output": "done"})


async def test_a_chat_has_the_input_and_takes_it_back(here: Stage) -> None:
    here.verifier.script = Script(text=CALL)
    choice = (await here.client.chat.completions.create(**CHAT)).choices[0]
    (call,) = choice.message.tool_calls or ()
    assert call.type == "custom"
    assert (choice.finish_reason, call.custom.name, call.custom.input) == ("tool_calls", "apply_patch", PATCH)
    history = [*CHAT["messages"], choice.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    assert (await here.client.chat.completions.create(**CHAT | {"messages": history})).choices


async def test_a_chat_streams_the_input(here: Stage) -> None:
    here.verifier.script = Script(text=CALL, gamma=1)
    parts: list[Any] = []
    async for chunk in await here.client.chat.completions.create(**CHAT, stream=True):
        for choice in chunk.model_dump(exclude_unset=True)["choices"]:
            parts += choice["delta"].get("tool_calls") or []
    assert (parts[0]["type"], parts[0]["custom"]["name"]) == ("custom", "apply_patch")
    assert "".join(part["custom"]["input"] for part in parts) == PATCH


async def test_the_result_of_a_call_is_the_next_turn(here: Stage) -> None:
    here.verifier.script = Script(text=CALL)
    first = await here.client.responses.create(**ASK)
    (item,) = first.output
    result: Any = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "done"}
    await here.client.responses.create(**ASK | {"input": [result], "previous_response_id": first.id})
    assert b"tool: done" in bytes(token for token in here.verifier.calls[-1].tokens if token < 256)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "name": "apply_patch"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]},
        "required",
    ],
)
async def test_a_call_that_must_be_is_bound(here: Stage, choice: Any) -> None:
    here.verifier.script = Script(text=CALL)
    await here.client.responses.create(**ASK | {"tool_choice": choice})
    grammar = here.verifier.calls[-1].sampling.grammar
    assert grammar is not None
    assert "TEXT" not in grammar.text


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (
            {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark"}},
            "tools[0].custom.format.grammar",
        ),
        ({"type": "custom", "name": "p", "format": GRAMMAR | {"definition": "start: /(/"}}, "tools"),
        ({"type": "custom", "name": "p", "format": GRAMMAR | {"definition": "start: <|end|>"}}, "tools[0].format"),
        ({"type": "custom", "name": "p", "format": GRAMMAR | {"syntax": "ebnf"}}, "tools[0].custom.format.syntax"),
        ({"type": "local_shell"}, "tools[0].type"),
    ],
)
async def test_a_tool_that_cannot_be_is_refused_by_name(here: Stage, tool: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await here.client.responses.create(**ASK | {"tools": [tool]})
    assert refused.value.param == param
