"""A model's thinking is separate from its answer for any division of the text, and a call in it is no call."""

from dataclasses import replace

import pytest

from gateway.http.requests.completions import ChatBody
from gateway.request import ChatPrompt
from gateway.tools.formats import format_of
from gateway.tools.message_reader import MessageReader, ReadMessage, joined_message
from gateway.tools.reading import Reading
from gateway.tools.thinking import THINKING, check_parser, thinking_of
from gateway.tools.values import ToolCall
from specdec.errors import UnsupportedParameter
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


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_tags_of_another_spelling_are_read_and_bind(size: int) -> None:
    text = "Here's my thought process: a: Here's b. Here's my response: c"
    assert read(Reading(thinking="granite"), text, size) == ReadMessage(" c", (), " a: Here's b. ")
    mixed = text.replace("Here's my thought", "Here is my thought")
    assert read(Reading(thinking="granite"), mixed, size) == ReadMessage(" c", (), " a: Here's b. ")


@pytest.mark.parametrize("size", [1, 1000])
def test_thinking_that_does_not_end_is_thinking(size: int) -> None:
    assert read(Reading(thinking="think", begun=True), "Hm </thi", size) == ReadMessage("", (), "Hm </thi")


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("name", THINKING)
def test_an_opening_tag_that_is_repeated_is_no_text(name: str, size: int) -> None:
    form = THINKING[name]
    for text in (f"\n{form.opening}\nso{form.closing}yes", f" so{form.closing}yes", f"so{form.closing}yes"):
        found = read(Reading(thinking=name, begun=True), text, size)
        assert (found.reasoning.strip(), found.content) == ("so", "yes")
    half = form.opening[:-1]
    assert read(Reading(thinking=name, begun=True), half, size) == ReadMessage("", (), half)


@pytest.mark.parametrize("size", [1, 1000])
def test_a_call_in_the_thinking_is_none(size: int) -> None:
    found = read(Reading("hermes", thinking="think", begun=True), f"I say {CALL}.</think>{CALL}", size)
    assert found.reasoning == f"I say {CALL}."
    assert [replace(call, id="") for call in found.calls] == [ToolCall("f", "{}")]
    assert found.content == ""


def test_the_prompt_may_open_the_thinking_or_close_it() -> None:
    reading = Reading("hermes", thinking="think")
    assert reading.after("<|im_start|>assistant\n<think>\n") == replace(reading, begun=True)
    assert reading.after("<|im_start|>assistant\n<think>\n\n</think>\n\n") == replace(reading, thinking="")
    assert reading.after("say <think><|im_end|>\n<|im_start|>assistant\n") == reading
    assert Reading.parse(reading.text()) == reading
    assert not Reading.parse(Reading().text())


def test_a_form_binds_after_the_thinking() -> None:
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


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"thinking_token_budget": 7}, 7),
        ({"thinking_budget": 0}, 0),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, 9),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "high"}, None),
    ],
)
def test_a_budget_bounds_the_thinking(fields: dict[str, object], budget: int | None) -> None:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    request = body.request("r", format_of("<think>"))
    assert request.thinking_budget == budget
    bound = request.reading.bound(request.sampling, budget).grammar
    assert bound == (None if budget is None else Grammar(GrammarKind.ANY, "*", "<think>\n</think>", budget))


def test_a_budget_is_refused_where_the_thinking_is_not_known() -> None:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}], "thinking_token_budget": 7})
    with pytest.raises(UnsupportedParameter, match="thinking_token_budget"):
        body.request("r")


def test_channels_are_bound_after_the_analysis() -> None:
    sampling = SamplingParams(grammar=Grammar(GrammarKind.REGEX, "a"))
    answer = Reading(thinking="gpt-oss").bound(sampling).grammar
    call = Reading("gpt-oss", thinking="gpt-oss").bound(sampling, 5).grammar
    analysis, closing, final = (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
    )
    assert answer == Grammar(GrammarKind.REGEX, "a", f"{analysis}\n{closing}{final}\n{final}")
    assert call == Grammar(GrammarKind.REGEX, "a", f"{analysis}\n{closing}", 5)


def test_the_parser_can_be_set() -> None:
    template = "<think>"
    names = {"auto": "think", "none": "", "deepseek_r1": "think", "openai_gptoss": "gpt-oss", "granite": "granite"}
    names |= {"seed_oss": "seed_oss", "glm47": "think", "deepseek_v41": "think"}
    found = {name: format_of(template, parser=check_parser(name)).thinking for name in names}
    assert found == names
    assert format_of("{{ messages }}", parser=check_parser("qwen3")).thinking == "think"
    with pytest.raises(ValueError, match="deepseek_r1"):
        check_parser("deepseek_r7")
