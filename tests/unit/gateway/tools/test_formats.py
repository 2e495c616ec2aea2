"""Each format of calls: what its parser reads from a stream, and what its grammar allows."""

import json
from collections.abc import Sequence

import pytest

from gateway.tools.formats import DEFAULT, FORMATS, format_of
from gateway.tools.template import described, knows_tools
from gateway.tools.values import CallDelta, Tool, ToolCall
from specdec.errors import UnsupportedParameter
from specdec.grammar.compiler import GrammarCompiler

A, B = ToolCall("a", '{"x": 1}'), ToolCall("b", "{}")
SCHEMA = {"properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TOOLS = (
    Tool("a", "", json.dumps(SCHEMA), True),
    Tool("b", "", '{"type": "object", "additionalProperties": false}', False),
)
HERMES = '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
TEXTS = {
    "hermes": f'{HERMES}\n<tool_call>\n{{"name": "b", "arguments": {{}}}}\n</tool_call>',
    "llama": '{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}',
    "mistral": '[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]',
    "pythonic": "[a(x=1), b()]",
}
END = 256


Read = str | ToolCall


def read(name: str, text: str, size: int) -> list[Read]:
    """What a parser makes of a text that comes in pieces of that size; parts that belong to each other are joined."""
    parser = FORMATS[name].parser()
    pieces = [piece for start in range(0, len(text), size) for piece in parser.feed(text[start : start + size])]
    joined: list[Read] = []
    for piece in [*pieces, *parser.end()]:
        match joined[-1:], piece:
            case [str(before)], str():
                joined[-1] = before + piece
            case _, str():
                joined.append(piece)
            case [ToolCall(before, arguments)], CallDelta(name="", arguments=more):
                joined[-1] = ToolCall(before, arguments + more)
            case _, CallDelta(name=name, arguments=arguments):
                joined.append(ToolCall(name, arguments))
    return joined


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", FORMATS)
def test_calls_are_read_however_their_text_is_cut(name: str, size: int) -> None:
    assert read(name, TEXTS[name], size) == [A, B]


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral"])
def test_a_name_and_then_arguments_come_before_the_call_is_complete(name: str) -> None:
    parser, text = FORMATS[name].parser(), TEXTS[name]
    place = text.index("{", text.index("{") + 1)
    parts = parser.feed(text[: place + 1])
    assert parts == [CallDelta(0, name="a"), CallDelta(0, arguments="{")]
    assert parser.feed('"x": "}</tool_call>]') == [CallDelta(0, arguments='"x": "}</tool_call>]')]
    assert parser.feed('\\"}"') == [CallDelta(0, arguments='\\"}"')]
    assert parser.feed("}") == [CallDelta(0, arguments="}")]
    assert parser.feed("}") == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hermes", '<tool_call>{"arguments": {"x": 1}, "name": "a"}</tool_call>', [A]),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": 1}, "more": {}}</tool_call>.', [A, "."]),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": 1</tool_call>.', [ToolCall("a", '{"x": 1'), "."]),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": 1}} and then', [A, "and then"]),
        ("llama", '{"name": "a", "parameters": {"x": 1}} Done', [A, "Done"]),
        ("llama", '{"name": "a", "parameters": {"x": 1}}; {"name": 1}', [A, '{"name": 1}']),
        ("llama", '{"name": "a", "parameters": {"x": 1}}; {"arguments": {}, "name": "b"}', [A, B]),
        ("hermes", f"Look: {HERMES}\nDone", ["Look:", A, "Done"]),
        ("hermes", "1 <2 and <tool", ["1 <2 and <tool"]),
        ("hermes", "<tool_call>no</tool_call>", ["<tool_call>no</tool_call>"]),
        ("hermes", HERMES.removesuffix("\n</tool_call>"), [A]),
        ("llama", '<|python_tag|>{"name": "a", "parameters": {"x": 1}}', [A]),
        ("llama", '{"name": "a"', ['{"name": "a"']),
        ("llama", "Hi {you}", ["Hi {you}"]),
        ("mistral", '[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}}]', [A]),
        ("mistral", "[1]", ["[1]"]),
        ("pythonic", "[a(1)]", ["[a(1)]"]),
        ("pythonic", "[a(x=open)]", ["[a(x=open)]"]),
        ("pythonic", "[" * 5000, ["[" * 5000]),
        ("pythonic", "", []),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str, expected: Sequence[Read]) -> None:
    for size in (1, 1000):
        assert read(name, text, size) == expected


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral"])
@pytest.mark.parametrize("forced", [True, False])
def test_a_grammar_allows_calls_of_the_schemas_and_text_unless_a_call_must_be(name: str, forced: bool) -> None:
    state = GrammarCompiler.of_bytes().compile(FORMATS[name].grammar(TOOLS, forced=forced, parallel=True))

    def allowed(text: str) -> bool:
        last = state.masks((), text.encode())[-1]
        return last is not None and bool(last[END // 8] >> END % 8 & 1)

    assert allowed(TEXTS[name])
    assert not allowed(TEXTS[name].replace("1", '"1"'))
    assert not allowed(TEXTS[name].replace('"a"', '"c"'))
    assert allowed("Hello") is not forced


def test_one_call_is_all_where_calls_are_not_parallel() -> None:
    state = GrammarCompiler.of_bytes().compile(DEFAULT.grammar(TOOLS, forced=True, parallel=False))
    assert state.masks((), HERMES.encode())[-1] is not None
    assert state.masks((), TEXTS["hermes"].encode())[-1] is None


def test_calls_that_are_no_json_cannot_be_forced() -> None:
    with pytest.raises(UnsupportedParameter):
        FORMATS["pythonic"].grammar(TOOLS, forced=True, parallel=True)


def test_a_format_is_known_by_the_chat_template() -> None:
    templates = ["{{ '<tool_call>' }}", "[TOOL_CALLS]", "<|python_tag|>", "[func_name1(params)]", "", None]
    names = [format_of(template).name for template in templates]
    assert names == ["hermes", "mistral", "llama", "pythonic", "hermes", "hermes"]


def test_a_template_that_knows_no_tools_gets_them_in_words() -> None:
    assert knows_tools("{% if tools %}")
    assert not knows_tools("{{ messages }}")
    call = {"function": {"name": "a", "arguments": {"x": 1}}}
    turns = described(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "c"},
        ],
        TOOLS,
    )
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert '"name": "a"' in str(turns[0]["content"])
    assert turns[2]["content"] == HERMES
    assert turns[3]["content"] == "<tool_response>\n42\n</tool_response>"
