"""OpenAI's client uses the Responses API: whole answers, events, calls, earlier responses, and answers sent back."""

from typing import Any

import openai
import pytest

from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts

CALL = '<tool_call>\n{"name": "shell", "arguments": {"command": ["ls"]}}\n</tool_call>'
SHELL: Any = {
    "type": "function",
    "name": "shell",
    "description": None,
    "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}},
    "strict": False,
}
AS_CODEX: Any = {
    "model": "bytes",
    "instructions": "You edit files.",
    "tools": [SHELL, {"type": "web_search"}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": None,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
}


async def test_a_text_is_one_message(here: Stage) -> None:
    here.verifier.script = Script(text="Hello.", cached=2)
    got = await here.client.responses.create(model="bytes", input="hi", instructions="Be short.", metadata={"a": "b"})
    assert (got.status, got.output_text, got.metadata) == ("completed", "Hello.", {"a": "b"})
    assert got.usage is not None
    assert got.usage.input_tokens == len(b"system: Be short.\nuser: hi\n")
    assert got.usage.input_tokens_details.cached_tokens == 2
    assert got.usage.output_tokens == 7


async def test_an_answer_that_is_cut_is_incomplete(here: Stage) -> None:
    here.verifier.script = Script(text="Hello.")
    got = await here.client.responses.create(model="bytes", input="hi", max_output_tokens=3)
    assert got.incomplete_details is not None
    assert (got.status, got.incomplete_details.reason, got.output_text) == ("incomplete", "max_output_tokens", "Hel")


@pytest.mark.parametrize(
    ("text", "tokens", "kinds"),
    [
        ("Hello.", 3, ["message"]),
        (f"Well. {CALL}", len(f"Well. {CALL}") - 20, ["message", "function_call"]),
    ],
)
async def test_only_the_item_that_is_cut_is_incomplete(here: Stage, text: str, tokens: int, kinds: list[str]) -> None:
    here.verifier.script = Script(text=text)
    ask: Any = {**AS_CODEX, "input": "go", "max_output_tokens": tokens}
    whole = await here.client.responses.create(**ask)
    expected = [(kind, "completed") for kind in kinds[:-1]] + [(kinds[-1], "incomplete")]
    assert [(item.type, item.status) for item in whole.output] == expected
    events: list[Any] = [event async for event in await here.client.responses.create(**ask, stream=True)]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.type, item.status) for item in done] == expected
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output == done


@pytest.mark.parametrize("lost", [1, 6, 18])
async def test_a_call_that_the_model_leaves_unfinished_is_incomplete(here: Stage, lost: int) -> None:
    here.verifier.script = Script(text=f"Well. {CALL}"[: -lost - len("}\n</tool_call>")])
    ask: Any = {**AS_CODEX, "input": "go"}
    whole = await here.client.responses.create(**ask)
    message, call = whole.output
    assert (whole.status, whole.incomplete_details) == ("incomplete", None)
    assert (message.status, call.status) == ("completed", "incomplete")  # type: ignore[union-attr]
    events: list[Any] = [event async for event in await here.client.responses.create(**ask, stream=True)]
    assert events[-1].type == "response.incomplete"
    assert [item.status for item in events[-1].response.output] == ["completed", "incomplete"]


async def test_events_are_numbered_and_make_the_answer(here: Stage) -> None:
    here.verifier.script = Script(text=f"Well. {CALL}", gamma=1)
    async with here.client.responses.stream(input="go", **AS_CODEX) as stream:
        events = [event async for event in stream]
        final: Any = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.completed",
    ]
    message, call = final.output
    assert (message.content[0].text, call.name, call.arguments) == ("Well.", "shell", '{"command": ["ls"]}')
    assert "".join(event.delta for event in events if event.type.endswith("arguments.delta")) == call.arguments


@pytest.mark.parametrize("streamed", [False, True])
async def test_ten_turns_of_an_agent_with_cut_calls(streamed: bool) -> None:
    verifier = ScriptedVerifier(info=facts(context_length=40_000))
    async with stage(verifier) as here:
        history: list[Any] = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}]
        for turn in range(10):
            verifier.script = Script(text=f"Step. {CALL}" if turn % 3 else CALL)
            limit = 12 + 9 * turn
            ask: Any = {**AS_CODEX, "input": history, "max_output_tokens": limit}
            if streamed:
                stream = await here.client.responses.create(**ask, stream=True)
                last: Any = [event async for event in stream][-1]
                got = last.response
            else:
                got = await here.client.responses.create(**ask)
            history += [item.model_dump(exclude_unset=True) for item in got.output]
            history += [
                {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
                for item in got.output
                if item.type == "function_call"
            ]
            history.append({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None})


async def test_the_next_response_continues_the_session_of_the_one_before(here: Stage) -> None:
    here.verifier.script = Script(text="ok")
    first = await here.client.responses.create(model="bytes", input="one", instructions="Be short.")
    second = await here.client.responses.create(
        model="bytes", input="two", instructions="Be short.", previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    expected = b"system: Be short.\nuser: one\nok", b"user: two\n"
    tokens = here.verifier.calls[-1].tokens
    assert bytes(token for token in tokens if token < 256) == b"".join(expected)
    with pytest.raises(openai.ConflictError):
        await here.client.responses.create(model="bytes", input="three", previous_response_id=first.id)


async def test_other_instructions_are_a_message_of_the_next_turn(here: Stage) -> None:
    here.verifier.script = Script(text="ok")
    previous, turns = None, []
    for said, instructions in (("one", "Be short."), ("two", "Be long."), ("three", "Be long."), ("four", "Be short.")):
        known = len(here.verifier.calls[-1].tokens) + len("ok") if here.verifier.calls else 0
        given: Any = {"previous_response_id": previous} if previous else {}
        response = await here.client.responses.create(model="bytes", input=said, instructions=instructions, **given)
        previous = response.id
        turns.append(bytes(token for token in here.verifier.calls[-1].tokens[known:] if token < 256))
    assert [b"system: Be long." in turn for turn in turns] == [False, True, False, False]
    assert [b"system: Be short." in turn for turn in turns] == [True, False, False, True]


async def test_instructions_too_long_to_store_are_given_once(here: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.responses.stored._LONG", 10)
    here.verifier.script = Script(text="ok")
    ask: Any = {"model": "bytes", "instructions": "Be short."}
    first = await here.client.responses.create(**ask, input="one")
    await here.client.responses.create(**ask, input="two", previous_response_id=first.id)
    tokens = here.verifier.calls[-1].tokens
    assert bytes(token for token in tokens if token < 256).count(b"Be short.") == 1


async def test_a_reference_to_an_item_is_the_item(here: Stage) -> None:
    here.verifier.script = Script(text=f"Well. {CALL}")
    first = await here.client.responses.create(**AS_CODEX | {"store": True}, input="go")
    items = [item.model_dump(exclude_unset=True) for item in first.output]
    assert [item["type"] for item in items] == ["message", "function_call"]
    result = {"type": "function_call_output", "call_id": items[1]["call_id"], "output": "ok"}
    references = [{"type": "item_reference", "id": items[0]["id"]}, {"id": items[1]["id"]}]
    seen = []
    for said in (items, references):
        given: Any = [{"role": "user", "content": "go"}, *said, result]
        await here.client.responses.create(**AS_CODEX, input=given)
        seen.append(here.verifier.calls[-1].tokens)
    assert seen[0] == seen[1]


async def test_references_add_up_to_one_body_at_most() -> None:
    async with stage(ScriptedVerifier(script=Script(text="long " * 40)), max_body_bytes=2000) as here:
        first = await here.client.responses.create(model="bytes", input="go")
        given: Any = [{"id": first.output[0].id}] * 8
        with pytest.raises(openai.BadRequestError, match="input refers to items of over 2000 bytes"):
            await here.client.responses.create(model="bytes", input=given)


async def test_an_item_of_another_user_or_of_no_store_does_not_exist(here: Stage) -> None:
    for fields in ({"user": "a", "store": True}, {"user": "b", "store": False}):
        first = await here.client.responses.create(**AS_CODEX | fields, input="go")
        given: Any = [{"type": "item_reference", "id": first.output[0].id}]
        with pytest.raises(openai.NotFoundError, match=r"input\[0\]: no such item"):
            await here.client.responses.create(**AS_CODEX, input=given, user="b")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, 404, "input[0]"),
        ({"input": [{"role": "user", "content": "a"}, {"id": f"msg_{'0' * 32}-1_0"}]}, 404, "input[1]"),
        ({"input": [{"id": f"msg_{at:032x}-1_0"} for at in range(129)]}, 400, "input"),
        ({"input": [{}]}, 400, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input[0]"),
        ({"tools": [{"type": "computer"}]}, 400, "tools[0].type"),
        ({"previous_response_id": "resp_1"}, 404, "previous_response_id"),
        ({"background": True}, 400, "background"),
        ({"wrong": 1}, 400, "wrong"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(here: Stage, fields: Any, status: int, param: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await here.client.responses.create(**{"model": "bytes", "input": "hi", "extra_body": fields})
    error: Any = refused.value
    assert (error.status_code, error.param) == (status, param)


async def test_a_form_is_followed(here: Stage) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}}
    await here.client.responses.create(model="bytes", input="hi", text=form)
    assert here.verifier.calls[-1].sampling.grammar is not None


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_can_be_fetched_and_deleted(streamed: bool, here: Stage) -> None:
    here.verifier.script = Script(text=f"Well. {CALL}")
    ask: Any = {**AS_CODEX, "store": True, "input": "go", "metadata": {"a": "b"}}
    if streamed:
        events: Any = [event async for event in await here.client.responses.create(**ask, stream=True)]
        made = events[-1].response
    else:
        made = await here.client.responses.create(**ask)
    found = await here.client.responses.retrieve(made.id)
    assert found.model_dump() == made.model_dump()
    assert len(here.verifier.calls) == 1
    await here.client.responses.delete(made.id)
    for again in (here.client.responses.retrieve, here.client.responses.delete):
        with pytest.raises((openai.NotFoundError, openai.APIStatusError)) as caught:
            await again(made.id)
        assert caught.value.status_code in (404, 410)


async def test_a_response_that_was_continued_goes_with_the_last_one(here: Stage) -> None:
    first = await here.client.responses.create(model="bytes", input="one")
    second = await here.client.responses.create(model="bytes", input="two", previous_response_id=first.id)
    with pytest.raises(openai.ConflictError, match=second.id):
        await here.client.responses.delete(first.id)
    await here.client.responses.delete(second.id)
    with pytest.raises(openai.APIStatusError):
        await here.client.responses.retrieve(first.id)


async def test_what_is_not_a_stored_response_is_not_found(here: Stage) -> None:
    unstored = await here.client.responses.create(input="go", **AS_CODEX)
    chat = await here.client.chat.completions.create(model="bytes", messages=[{"role": "user", "content": "x"}])
    names = [unstored.id, "resp_x", f"resp_{'0' * 32}-1", chat.id.replace("chatcmpl-", "resp_")]
    for name in names:
        with pytest.raises(openai.NotFoundError):
            await here.client.responses.retrieve(name)
        with pytest.raises(openai.NotFoundError):
            await here.client.responses.delete(name)


async def test_the_fields_of_vllm_are_those_of_a_chat(here: Stage) -> None:
    here.verifier.script = Script(text="One. Two.")
    fields: Any = {
        "stop": [". "],
        "include_stop_str_in_output": True,
        "seed": 5,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.5,
        "logit_bias": {"65": 2},
        "stop_token_ids": [7],
        "ignore_eos": True,
        "cache_salt": "s",
        "request_id": "r",
        "chat_template_kwargs": {"a": 1},
        "priority": 0,
    }
    got = await here.client.responses.create(model="bytes", input="hi", temperature=0.5, extra_body=fields)
    assert (got.output_text, got.temperature) == ("One. ", 0.5)
    call = here.verifier.calls[-1]
    sampling = call.sampling
    assert (sampling.seed, sampling.top_k, sampling.min_p, dict(sampling.logit_bias)) == (5, 3, 0.1, {65: 2.0})
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 0.25)
    assert (sampling.repetition_penalty, sampling.temperature) == (1.5, 0.5)
    again = await here.client.responses.retrieve(got.id)
    assert again.output_text == "One. "


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [""]}, "stop"),
        ({"top_k": -2}, "top_k"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"type": "whole"}}}, "structured_outputs.json"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"previous_input_messages": []}, "previous_input_messages"),
        ({"priority": 3}, "priority"),
    ],
)
async def test_a_wrong_field_of_vllm_is_refused_by_name(here: Stage, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await here.client.responses.create(model="bytes", input="hi", extra_body=fields)
    assert refused.value.param == param


async def test_a_form_of_vllm_binds_a_response(here: Stage) -> None:
    fields: Any = {"structured_outputs": {"choice": ["Hello, world."]}}
    await here.client.responses.create(model="bytes", input="hi", extra_body=fields)
    grammar = here.verifier.calls[-1].sampling.grammar
    assert grammar is not None
    assert "Hello, world." in grammar.text


@pytest.mark.parametrize("asked", [True, False])
async def test_a_response_has_log_probabilities_where_they_are_included(here: Stage, asked: bool) -> None:
    here.verifier.script = Script(text="Hello.", gamma=1)
    ask: Any = {"model": "bytes", "input": "hi", "top_logprobs": 2}
    ask["include"] = ["message.output_text.logprobs"] if asked else ["reasoning.encrypted_content"]
    whole: Any = await here.client.responses.create(**ask)
    found = whole.output[0].content[0].logprobs
    assert [(each.token, len(each.top_logprobs)) for each in found] == [
        (token, 2) for token in ([*"Hello.", "<end>"] if asked else ())
    ]
    events: list[Any] = [event async for event in await here.client.responses.create(**ask, stream=True)]
    deltas = [each for event in events if event.type == "response.output_text.delta" for each in event.logprobs]
    assert [each.token for each in deltas] == ([*"Hello."] if asked else [])
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert [(each.token, each.logprob) for each in done.logprobs] == [(each.token, each.logprob) for each in found]
    assert events[-1].response.output[0].content[0].logprobs == found
