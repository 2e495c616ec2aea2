"""What a model thinks is apart from its answer, however its text is cut; and a call in it is no call."""

from dataclasses import replace

import pytest

from gateway.http.requests.completions import ChatBody
from gateway.request import ChatPrompt
from gateway.tools.message_reader import MessageReader, ReadMessage, joined_message
from gateway.tools.reading import Reading
from gateway.tools.thinking import THINKING, thinking_of
from gateway.tools.values import ToolCall
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def read(reading: Reading, text: str, size: int = 1000) -> ReadMessage:
    reader = MessageReader(reading, "g")
    deltas = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return joined_message([*deltas, reader.end()])


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", THINKING)
def test_thinking_and_answer_are_apart(name: str, size: int) -> None:
    form, thought = THINKING[name], "1 < 2\n\nso"
    text = f"{form.opening}\n{thought}\n{form.closing}\n\nYes, 1 < 2.\n"
    for begun in (True, False):
        given = text.removeprefix(form.opening + "\n") if begun else text
        found = read(Reading(thinking=name, begun=begun), given, size)
        assert (found.reasoning, found.content) == (thought, "Yes, 1 < 2.\n")
    assert read(Reading(thinking=name), "No.", size) == ReadMessage("No.", ())


@pytest.mark.parametrize("size", [1, 1000])
def test_thinking_that_does_not_end_is_thinking(size: int) -> None:
    assert read(Reading(thinking="think", begun=True), "Hm </thi", size) == ReadMessage("", (), "Hm </thi")


@pytest.mark.parametrize("size", [1, 1000])
def test_a_call_in_the_thinking_is_none(size: int) -> None:
    found = read(Reading("hermes", thinking="think", begun=True), f"I say {CALL}.</think>{CALL}", size)
    assert found.reasoning == f"I say {CALL}."
    assert [replace(call, id="") for call in found.calls] == [ToolCall("f", "{}")]
    assert found.content == ""


def test_the_prompt_may_open_the_thinking_or_close_it() -> None:
    reading = Reading("hermes", thinking="think")
    assert reading.behind("<|im_start|>assistant\n<think>\n") == replace(reading, begun=True)
    assert reading.behind("<|im_start|>assistant\n<think>\n\n</think>\n\n") == replace(reading, thinking="")
    assert reading.behind("say <think><|im_end|>\n<|im_start|>assistant\n") == reading
    assert Reading.parse(reading.text()) == reading
    assert not Reading.parse(Reading().text())


def test_a_form_binds_behind_the_thinking() -> None:
    sampling = SamplingParams(grammar=Grammar(GrammarKind.REGEX, "a"))
    bound = {begun: Reading(thinking="think", begun=begun).bound(sampling).grammar for begun in (True, False)}
    assert {begun: each and each.behind for begun, each in bound.items()} == {
        True: "</think>",
        False: "<think>\n</think>",
    }
    assert Reading("hermes").bound(sampling) == sampling


def test_the_format_is_known_by_the_template() -> None:
    assert [thinking_of(f"a{form.closing}b") for form in THINKING.values()] == list(THINKING)
    assert thinking_of("{{ messages }}") == thinking_of(None) == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        ({"enable_thinking": True}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}},
            {"enable_thinking": True, "thinking": True, "thinking_budget": 9},
        ),
        ({"thinking_budget": 5, "chat_template_kwargs": {"thinking_budget": 6}}, {"thinking_budget": 6}),
    ],
)
def test_what_is_asked_of_the_thinking_goes_to_the_template(fields: dict[str, object], expected: object) -> None:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    prompt = body.request("r").prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_arguments == expected
