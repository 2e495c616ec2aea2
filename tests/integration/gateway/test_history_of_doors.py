"""Responses and Messages accept their own answers: the SDKs send answers of every shape back as history."""

import json
import random
from collections.abc import Iterable
from typing import Any

import anthropic
import httpx2
import pytest

from tests.integration.gateway.stage import Stage, stage
from tests.integration.gateway.writing_tool import CALL, WRITE
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts

TEXTS = ("", "Well.", CALL, f"Well. {CALL}", f"{CALL}\n{CALL}", f"{CALL} and", '<tool_call>{"name": "x"')
LONG = 60_000
CACHED = {"cache_control": {"type": "ephemeral"}}
FUNCTION: Any = WRITE["function"]
TOOL: Any = {"name": "write", "description": None, "input_schema": FUNCTION["parameters"]} | CACHED
ITEM_TOOL: Any = {"type": "function", **FUNCTION, "strict": None}


def kept(value: Any, drawn: random.Random) -> dict[str, Any]:
    """Return a block or an item with changes that clients make when they store it."""
    how = drawn.choice([{}, {"exclude_unset": True}, {"exclude_none": True}])
    found: dict[str, Any] = json.loads(json.dumps(value.model_dump(mode="json", **how)))
    return found | drawn.choice([{}, {"unheard_of": None}])


def blocks(content: Iterable[Any], drawn: random.Random) -> list[dict[str, Any]]:
    """Return the blocks of an answer as a client may send them back, possibly with thinking before them."""
    found = [kept(block, drawn) | drawn.choice([{}, CACHED]) for block in content]
    signed = {"type": "thinking", "thinking": "so", "signature": drawn.choice(["", "c2ln"])}
    thought = drawn.choice([[], [signed], [{"type": "redacted_thinking", "data": "x"}]])
    for block in found:
        if block["type"] == "text":
            block.update(drawn.choice([{}, {"citations": None}, {"citations": []}]))
    return [*thought, *found]


def results(said: Iterable[dict[str, Any]], drawn: random.Random) -> list[dict[str, Any]]:
    """Return a result of each call, in one of the forms that clients send."""
    forms: list[dict[str, Any]] = [
        *({"content": each} for each in ("ok", "", None, [], [{"type": "text", "text": "a"}] * 2)),
        {"content": "no", "is_error": True},
        {},
    ]
    calls = [block for block in said if block["type"] == "tool_use"]
    return [{"type": "tool_result", "tool_use_id": call["id"]} | drawn.choice(forms) for call in calls]


@pytest.mark.parametrize("seed", range(3))
async def test_every_message_is_accepted_back(seed: int) -> None:
    drawn, verifier = random.Random(seed), ScriptedVerifier(info=facts(context_length=LONG))
    async with (
        stage(verifier) as here,
        anthropic.AsyncAnthropic(base_url=here.url, api_key="none", max_retries=0) as client,
    ):
        talk: list[Any] = [{"role": "user", "content": "go"}]
        for _ in range(10):
            verifier.script = Script(text=drawn.choice(TEXTS), gamma=drawn.randrange(4))
            ask: Any = {"model": "bytes", "max_tokens": drawn.randrange(1, 160), "messages": talk, "tools": [TOOL]}
            if drawn.random() < 0.5:
                got = await client.messages.create(**ask)
            else:
                async with client.messages.stream(**ask) as stream:
                    got = await stream.get_final_message()
            said = blocks(got.content, drawn)
            next_turn = [*results(said, drawn), {"type": "text", "text": "on"} | drawn.choice([{}, CACHED])]
            talk += [{"role": "assistant", "content": said}] if said else []
            talk.append({"role": "user", "content": next_turn})


def items(output: Iterable[Any], drawn: random.Random) -> list[dict[str, Any]]:
    """Return the items of an answer as a client may send them back, with the results of its tools."""
    found = [kept(item, drawn) for item in output]
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "so"}], "status": None}
    if drawn.random() < 0.5:
        content = drawn.choice([{}, {"content": [{"type": "reasoning_text", "text": "so"}]}, {"content": None}])
        found.insert(0, thought | content | drawn.choice([{}, {"encrypted_content": "eA=="}]))
    forms: list[Any] = ["ok", "", None, [{"type": "input_text", "text": "a"}] * 2, []]
    for item in list(found):
        if item["type"] == "function_call":
            item.update(
                drawn.choice([{}, {"status": "incomplete"}, {"id": None}, {"arguments": item["arguments"][:9]}])
            )
            given = {"call_id": item["call_id"], "output": drawn.choice(forms)}
            found.append({"type": "function_call_output", **given} | drawn.choice([{}, {"id": None, "status": None}]))
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_every_response_is_accepted_back(seed: int) -> None:
    drawn, verifier = random.Random(seed), ScriptedVerifier(info=facts(context_length=LONG))
    async with stage(verifier) as here:
        talk: list[Any] = [{"role": "user", "content": "go"}]
        for _ in range(10):
            verifier.script = Script(text=drawn.choice(TEXTS), gamma=drawn.randrange(4))
            ask: Any = {
                "model": "bytes",
                "max_output_tokens": drawn.randrange(16, 160),
                "input": talk,
                "tools": [ITEM_TOOL],
            }
            if drawn.random() < 0.5:
                got: Any = await here.client.responses.create(**ask)
            else:
                stream = await here.client.responses.create(**ask, stream=True)
                last: Any = [event async for event in stream][-1]
                got = last.response
            talk += items(got.output, drawn)
            talk.append({"role": "user", "content": drawn.choice(["on", [{"type": "input_text", "text": "on"}]])})


IMAGE = "data:image/png;base64,iVBORw0KGgo="
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
IMAGES: list[tuple[str, dict[str, Any], str]] = [
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]},
        "messages",
    ),
    (
        "messages",
        {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": PNG}]}]},
        "messages[0].content",
    ),
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}]}, "input[0]"),
    (
        "messages",
        {
            "max_tokens": 1,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": PNG}]}
                    ],
                }
            ],
        },
        "messages[0].content",
    ),
    (
        "responses",
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image", "image_url": IMAGE}],
                }
            ]
        },
        "input[0]",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), IMAGES)
async def test_an_image_is_refused_by_name(here: Stage, path: str, body: dict[str, Any], param: str) -> None:
    async with httpx2.AsyncClient() as client:
        refused = await client.post(f"{here.url}/v1/{path}", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, param in error["message"] or error["param"] == param) == (400, True), error
