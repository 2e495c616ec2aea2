"""Each format of tool calls: its parser of a stream, and its grammar."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.grammars.structured import choice, json_schema, regex
from gateway.tools.formats import DEFAULT, FORMATS, TAGS, ToolFormat, format_of, knows_tools
from gateway.tools.template import described
from gateway.tools.values import CallDelta, Thought, Tool, ToolCall
from gateway.tools.xml_calls import texts_of
from specdec.errors import FieldInvalid, UnsupportedParameter
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar, GrammarKind

A, B = ToolCall("a", '{"x": 1}'), ToolCall("b", "{}")
SCHEMA = {"properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TOOLS = (
    Tool("a", "", json.dumps(SCHEMA), True),
    Tool("b", "", '{"type": "object", "additionalProperties": false}', False),
)
HERMES = '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
LISTED = '[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]'
TEXTS = {
    "hermes": f'{HERMES}\n<tool_call>\n{{"name": "b", "arguments": {{}}}}\n</tool_call>',
    "llama": '{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}',
    "mistral": f"[TOOL_CALLS]{LISTED}",
    "mistral_v11": '[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}',
    "pythonic": "[a(x=1), b()]",
    "phi4": f"<|tool_call|>{LISTED}<|/tool_call|>",
    "granite": f"<|tool_call|>{LISTED}",
    "qwen3_coder": "<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=b>\n</function>\n</tool_call>",
    "glm": "<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>b\n</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n"
    '{"x": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>b<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>"
    '{"x": 1}<|tool_call_end|><|tool_call_begin|>functions.b:1<|tool_call_argument_begin|>{}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "gpt-oss": '<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": 1}<|call|><|start|>assistant'
    "<|channel|>commentary to=functions.b <|constrain|>json<|message|>{}",
}
ALONE = ("llama", "pythonic")
"""Formats in which nothing tells a call from a text before its name is complete."""
END = 256


Read = str | ToolCall


def read(name: str, text: str, size: int, tools: Sequence[Tool] = TOOLS) -> list[Read]:
    """Parse a text in pieces of that size, and join the parts that belong to each other."""
    parser = FORMATS[name].parser(texts_of(tools))
    pieces = [piece for start in range(0, len(text), size) for piece in parser.feed(text[start : start + size])]
    joined: list[Read] = []
    for piece in [*pieces, *parser.end()]:
        match joined[-1:], piece:
            case [str(before)], str() if not before.endswith(")"):
                joined[-1] = before + piece
            case [str(before)], Thought(thought):
                joined[-1] = f"{before.removesuffix(')')}{thought})"
            case _, str():
                joined.append(piece)
            case [ToolCall(before, arguments)], CallDelta(name="", arguments=more):
                joined[-1] = ToolCall(before, arguments + more)
            case _, Thought(thought):
                joined.append(f"({thought})")
            case _, CallDelta(name=name, arguments=arguments):
                joined.append(ToolCall(name, arguments))
    return joined


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", TEXTS)
def test_calls_are_read_however_their_text_is_cut(name: str, size: int) -> None:
    assert read(name, TEXTS[name], size) == [A, B]


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral"])
def test_a_name_and_then_arguments_come_before_the_call_is_complete(name: str) -> None:
    parser, text = FORMATS[name].parser({}), TEXTS[name]
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
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": 1}, "more": {}}</tool_call>.', [A, '"more": {}}.']),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": 1</tool_call>.', [ToolCall("a", '{"x": 1'), "."]),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": 1}} and then', [A, "and then"]),
        ("llama", '{"name": "a", "parameters": {"x": 1}} Done', [A, "Done"]),
        ("llama", '{"name": "a", "parameters": {"x": 1}}; {"name": 1}', [A, '{"name": 1}']),
        ("llama", '{"name": "a", "parameters": {"x": 1}}; {"arguments": {}, "name": "b"}', [A, B]),
        ("hermes", f"Look: {HERMES}\nDone", ["Look:", A, " \nDone"]),
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
        ("pythonic", "[a(x=1e999)]", ["[a(x=1e999)]"]),
        ("pythonic", "[" * 5000, ["[" * 5000]),
        ("pythonic", "", []),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str, expected: Sequence[Read]) -> None:
    for size in (1, 1000):
        assert read(name, text, size) == expected


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("forced", [True, False])
def test_a_grammar_allows_calls_and_text_unless_a_call_is_required(name: str, forced: bool) -> None:
    state = GrammarCompiler.of_bytes().compile(FORMATS[name].grammar(TOOLS, forced=forced, parallel=True))

    def allowed(text: str) -> bool:
        last = state.masks((), text.encode())[-1]
        return last is not None and bool(last[END // 8] >> END % 8 & 1)

    assert allowed(TEXTS[name])
    assert not allowed(TEXTS[name].replace("1", '"1"', 1))
    assert allowed(f"{FORMATS[name].lead}Hello") is not forced


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("lead", ["Well. ", "a <tool\n"])
@pytest.mark.parametrize("name", [name for name in TEXTS if not FORMATS[name].text])
def test_text_may_precede_a_strict_call(name: str, lead: str, special: bool) -> None:
    tags = sorted(TAGS) if special else []
    form = format_of("tools" + " ".join(FORMATS[name].marks), tags)
    state = GrammarCompiler.of_bytes(tags).compile(form.grammar(TOOLS, forced=False, parallel=True))
    text = [*lead.encode(), *spelled(form, TEXTS[name], tags)]
    last = state.masks((), text)[-1]
    assert last is not None
    assert last[END // 8] >> END % 8 & 1


WORDS = {
    "qwen3_coder": ("<tool_call>\n<function=a>\n<parameter=x>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "glm": ("<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"),
}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("bounds", "fits", "others"),
    [
        ({}, ["", "hello", "a\nb", "a\n", "\n", "a <b", "</x", 'é "😀"\\', "{}"], []),
        ({"minLength": 2, "maxLength": 3}, ["ab", "a\n", "é😀x"], ["a", "abcd"]),
        ({"pattern": "^[a-z/]+$"}, ["ab", "a/"], ["", "aB", "a\n"]),
        ({"pattern": "b|c"}, ["abd", "c"], ["ad"]),
        ({"enum": ["a", "ab"]}, ["a", "ab"], ["b", "abc"]),
    ],
)
@pytest.mark.parametrize("name", WORDS)
def test_text_between_tags_is_bound_and_read(
    name: str, bounds: dict[str, Any], fits: list[str], others: list[str], special: bool
) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"} | bounds}, "required": ["x"]}
    tool = Tool("a", "", json.dumps(schema), True)
    tags = sorted(TAGS) if special else []
    form = format_of("tools" + " ".join(FORMATS[name].marks), tags)
    for value in (*fits, *others):
        text = WORDS[name][0] + value + WORDS[name][1]
        state = GrammarCompiler.of_bytes(tags).compile(form.grammar([tool], forced=True, parallel=False))
        last = state.masks((), spelled(form, text, tags))[-1]
        assert bool(last and last[END // 8] >> END % 8 & 1) == (value in fits), value
        assert read(name, text, 5, (tool,)) == [ToolCall("a", json.dumps({"x": value}, ensure_ascii=False))]


@pytest.mark.parametrize("pattern", ["^a|b$", "a$b", "("])
def test_a_pattern_that_cannot_be_a_part_of_a_grammar_is_refused_by_name(pattern: str) -> None:
    tool = Tool("a", "", json.dumps({"properties": {"x": {"type": "string", "pattern": pattern}}}), True)
    with pytest.raises(FieldInvalid) as refused:
        FORMATS["glm"].grammar([tool], forced=True, parallel=False)
    assert refused.value.param == "tools[0].function.parameters.x"


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_tags_that_are_special_tokens_are_used_in_a_required_call(name: str, special: bool) -> None:
    tags = sorted(TAGS) if special else []
    form = format_of("tools" + " ".join(FORMATS[name].marks), tags)
    assert form.name == name
    state = GrammarCompiler.of_bytes(tags).compile(form.grammar(TOOLS, forced=True, parallel=True))
    last = state.masks((), spelled(form, TEXTS[name], tags))[-1]
    assert last is not None
    assert last[END // 8] >> END % 8 & 1


def spelled(form: ToolFormat, text: str, tags: Sequence[str]) -> list[int]:
    """Return the text in bytes, with its tags as their tokens."""
    ids: list[int] = []
    while text:
        tag = next((tag for tag in form.special if text.startswith(tag)), "")
        ids += [END + 1 + tags.index(tag)] if tag else text[0].encode()
        text = text[len(tag) or 1 :]
    return ids


@pytest.mark.parametrize("answer", [json_schema(SCHEMA, "f"), regex("[a-z/]{2}", "f"), choice(["yes", "no"], "f")])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", [name for name in TEXTS if name not in ALONE])
def test_an_answer_is_calls_or_of_the_form(name: str, special: bool, answer: Grammar) -> None:
    tags = sorted(TAGS) if special else []
    form = format_of("tools" + " ".join(FORMATS[name].marks), tags)
    answers = {GrammarKind.JSON_SCHEMA: '{"x": 1}', GrammarKind.REGEX: "a/", GrammarKind.LARK: "no"}
    texts = {TEXTS[name]: True, form.lead + answers[answer.kind]: True, f"{form.lead}Hello": False}
    for text, fits in texts.items():
        grammar = form.grammar(TOOLS, forced=False, parallel=True, answer=answer)
        last = GrammarCompiler.of_bytes(tags).compile(grammar).masks((), spelled(form, text, tags))[-1]
        assert bool(last and last[END // 8] >> END % 8 & 1) == fits, text
    forced = form.grammar(TOOLS, forced=True, parallel=True, answer=answer)
    assert forced == form.grammar(TOOLS, forced=True, parallel=True)


def test_a_form_binds_alone_where_calls_look_like_it() -> None:
    answer = regex("a", "f")
    for name in ("unknown", *ALONE):
        assert FORMATS[name].grammar(TOOLS, forced=False, parallel=True, answer=answer) == answer
    with pytest.raises(UnsupportedParameter):
        FORMATS["unknown"].grammar(TOOLS, forced=True, parallel=True, answer=answer)


def test_one_call_is_all_where_calls_are_not_parallel() -> None:
    state = GrammarCompiler.of_bytes().compile(DEFAULT.grammar(TOOLS, forced=True, parallel=False))
    assert state.masks((), HERMES.encode())[-1] is not None
    assert state.masks((), TEXTS["hermes"].encode())[-1] is None


PYTHON: Any = {
    "n": {"type": "integer"},
    "s": {"type": "string"},
    "on": {"type": "boolean"},
    "c": {"enum": ["u", "v'", None]},
    "o": {"type": ["object", "null"]},
}


@pytest.mark.parametrize(
    ("arguments", "fits", "expected"),
    [
        ('s="say \\"x\\" 😀"', True, {"s": 'say "x" 😀'}),
        ('n=-1, s="", on=True, c="v\'", o={"k": [true, null, 1.5]}', True, None),
        ('s="a\\nb", c=None, o=null', True, {"s": "a\nb", "c": None, "o": None}),
        ("n=1", False, {"n": 1}),
        ("s=1", False, {"s": 1}),
        ('on=True, s=""', False, {"on": True, "s": ""}),
        ("s='😀', on=false", False, {"s": "😀", "on": False}),
        ('s="\\ud83d\\ude00"', None, {"s": "😀"}),
    ],
)
def test_a_python_call_has_arguments_of_its_schema(arguments: str, fits: bool | None, expected: Any) -> None:
    tool = Tool("a.b", "", json.dumps({"properties": PYTHON, "required": ["s"]}), True)
    text = f"[a.b({arguments})]"
    state = GrammarCompiler.of_bytes().compile(FORMATS["pythonic"].grammar([tool], forced=True, parallel=False))
    last = state.masks((), text.encode())[-1]
    assert fits in (None, bool(last and last[END // 8] >> END % 8 & 1))
    (call,) = read("pythonic", text, 3)
    assert isinstance(call, ToolCall)
    given = json.loads(call.arguments)
    if expected is None:
        expected = {"n": -1, "s": "", "on": True, "c": "v'", "o": {"k": [True, None, 1.5]}}
    assert (call.name, given) == ("a.b", expected)


@pytest.mark.parametrize(("name", "parameter"), [("a-b", "x"), ("a.1b", "x"), ("a", "from"), ("a", "x-y")])
def test_a_call_without_a_python_name_is_not_forced(name: str, parameter: str) -> None:
    tool = Tool(name, "", json.dumps({"properties": {parameter: {}}}), False)
    with pytest.raises(UnsupportedParameter, match="no name in Python"):
        FORMATS["pythonic"].grammar([tool], forced=True, parallel=True)


def test_a_format_is_known_by_the_chat_template() -> None:
    marks = {name: "".join(FORMATS[name].marks) for name in TEXTS}
    assert {name: format_of(f"{{% if tools %}}{text}").name for name, text in marks.items()} == {n: n for n in marks}
    assert [format_of(template).name for template in ("", None, "{{ messages }}")] == ["hermes"] * 3


def test_an_unknown_format_is_text_and_is_refused_where_a_call_is_required() -> None:
    form = format_of("{% if tools %}{{ tools }}{% endif %}")
    assert read(form.name, HERMES, 3) == [HERMES]
    with pytest.raises(UnsupportedParameter, match="format unknown"):
        form.grammar(TOOLS, forced=True, parallel=True)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_what_is_thought_in_a_channel_is_apart(size: int) -> None:
    text = "<|channel|>analysis<|message|>I call a.<|end|><|start|>assistant<|channel|>final<|message|>Done."
    assert read("gpt-oss", text, size) == ["(I call a.)", "Done."]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("qwen3_coder", TEXTS["qwen3_coder"].replace("1", "</tool_call>"), ToolCall("a", '{"x": "</tool_call>"}')),
        ("glm", TEXTS["glm"].replace("1", "</tool_call>"), ToolCall("a", '{"x": "</tool_call>"}')),
        ("hermes", HERMES.replace("1", '"</tool_call>"'), ToolCall("a", '{"x": "</tool_call>"}')),
        (
            "hermes",
            '<tool_call>{"arguments": {"x": "</tool_call>"}, "name": "a"}</tool_call>',
            ToolCall("a", '{"x": "</tool_call>"}'),
        ),
        ("hermes", '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', A),
        ("hermes", '<tool_call>{"name": "b"}</tool_call>', B),
    ],
)
def test_calls_that_are_written_oddly_are_read(name: str, text: str, expected: ToolCall) -> None:
    for size in (1, 1000):
        assert read(name, text, size)[0] == expected


def test_several_calls_in_one_tag_are_all_read() -> None:
    text = HERMES.replace("\n</tool_call>", '\n{"name": "b", "arguments": {}}\n</tool_call>')
    assert read("hermes", text, 1) == read("hermes", text, 1000) == [A, B]


@pytest.mark.parametrize("name", TEXTS)
def test_a_cut_call_is_told_and_nothing_is_lost(name: str) -> None:
    for end in range(len(TEXTS[name])):
        text = TEXTS[name][:end]
        parser = FORMATS[name].parser(texts_of(TOOLS))
        pieces = [*parser.feed(text), *parser.end()]
        calls = [piece for piece in pieces if isinstance(piece, CallDelta)]
        arguments = ["".join(call.arguments for call in calls if call.index == index) for index in (0, 1)]
        whole = [bool(each) and each.endswith("}") for each in arguments if each or calls]
        assert parser.cut or not calls or all(whole[: calls[-1].index + 1]), text
        if not calls and '"name"' not in text:
            assert (
                "".join(piece for piece in pieces if isinstance(piece, str)).strip()
                or not text.strip()
                or name in (*("kimi", "gpt-oss", "deepseek_v3", "deepseek_v31"),)
            )


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


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm"])
@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"description": "d" * 30_000}}, "properties": {f"p{index}": {} for index in range(3000)}},
        {"properties": {"a": {"description": "d" * 70_000}}},
    ],
    ids=["definitions for each argument", "one schema"],
)
def test_a_grammar_of_tools_is_refused_as_soon_as_it_is_too_long(name: str, schema: object) -> None:
    tools = [Tool("a", "", json.dumps(schema), True)]
    with pytest.raises(FieldInvalid) as refused:
        FORMATS[name].grammar(tools, forced=True, parallel=False)
    assert refused.value.param.startswith("tools")


@pytest.mark.parametrize("schema", [{"properties": []}, {"required": 5, "properties": {"a": {}}}])
def test_arguments_that_are_no_schema_are_refused(schema: object) -> None:
    with pytest.raises(FieldInvalid) as refused:
        FORMATS["glm"].grammar([Tool("a", "", json.dumps(schema), True)], forced=True, parallel=False)
    assert refused.value.param == "tools[0].function.parameters"
