"""Custom tools: their inputs are read from JSON arguments, and their grammars bind in every format of calls."""

import json
import random

import pytest

from gateway.tools.custom import InputReader, as_function, custom_tool, earlier_call
from gateway.tools.formats import FORMATS
from gateway.tools.message_reader import MessageReader, joined_message
from gateway.tools.reading import Reading
from gateway.tools.xml_calls import texts_of
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar

LARK = 'start: line+\nline: "+" /.*/ LF\n%import common.LF'
INPUTS = ("", "plain", 'a "b"\n\t\\ / é 😀', "}", '{"input": "x"}', "\ud83d", "</parameter", "a\n")


def as_input(arguments: str, drawn: random.Random) -> str:
    """Return the input of arguments that arrive in random pieces."""
    reader, found = InputReader(), ""
    while arguments:
        size = drawn.randrange(1, 9)
        found, arguments = found + reader.feed(arguments[:size]), arguments[size:]
    return found + reader.end()


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("text", INPUTS)
def test_an_input_is_read_however_it_is_cut(text: str, ascii_only: bool) -> None:
    shown = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for seed in range(20):
        for form in ('{"input": %s}', '{ "input" :%s }\n'):
            given = form % json.dumps(text, ensure_ascii=ascii_only)
            assert as_input(given, random.Random(seed)) == shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "ab', "ab"),
        ('{"input": "ab\\', "ab"),
        ('{"input": "ab\\u00', "ab"),
        ('{"inp', ""),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ("{}", "{}"),
        ('{"input": "x", "note": 1}', 'x, "note": 1}'),
        ('{"input": "\\q"}', "\\q"),
    ],
)
def test_arguments_of_another_form_are_not_lost(arguments: str, text: str) -> None:
    assert as_input(arguments, random.Random(1)) == text


def test_a_call_is_a_function_call_to_templates() -> None:
    call = earlier_call("patch", "a\n", "c1")
    assert json.loads(call.arguments) == {"input": "a\n"}
    shown = joined_message([MessageReader(Reading("hermes", custom=("patch",)), "g").feed(written("patch", "a\n"))])
    assert [(each.arguments, each.custom) for each in shown.calls] == [("a\n", True)]
    assert json.loads(as_function(shown.calls[0]).arguments) == {"input": "a\n"}


def written(name: str, text: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"input": {json.dumps(text)}}}}}\n</tool_call>'


def test_inputs_and_arguments_keep_their_calls() -> None:
    text = written("patch", 'x\n"') + "\n" + written("other", "y") + "\n" + written("patch", "z") + " done"
    for size in (1, 7, 1000):
        reader = MessageReader(Reading.parse(Reading("hermes", custom=("patch",)).text()), "g")
        deltas = [reader.feed(text[start : start + size]) for start in range(0, len(text), size)]
        message = joined_message([*deltas, reader.end()])
        assert [each.arguments for each in message.calls] == ['x\n"', '{"input": "y"}', "z"]
        assert [each.custom for each in message.calls] == [True, False, True]
        assert message.content == "done"


def accepts(grammar: Grammar, text: str) -> bool:
    masks = GrammarCompiler.of_bytes().compile(grammar)
    output: list[int] = []
    for token in (*text.encode(), 256):
        (mask,) = masks.masks(output)
        if mask is not None and not mask[token // 8] >> token % 8 & 1:
            return False
        output.append(token)
    return True


CALLS = {
    "hermes": ('<tool_call>\n{"name": "p", "arguments": {"input": "', '"}}\n</tool_call>', True),
    "llama": ('{"name": "p", "parameters": {"input": "', '"}}', True),
    "mistral_v11": ('[TOOL_CALLS]p[ARGS]{"input": "', '"}', True),
    "gpt-oss": ('<|channel|>commentary to=functions.p <|constrain|>json<|message|>{"input": "', '"}', True),
    "qwen3_coder": (
        "<tool_call>\n<function=p>\n<parameter=input>\n",
        "\n</parameter>\n</function>\n</tool_call>",
        False,
    ),
    "glm": ("<tool_call>p\n<arg_key>input</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>", False),
}


@pytest.mark.parametrize("syntax", ["lark", "regex"])
@pytest.mark.parametrize("name", CALLS)
def test_a_grammar_binds_in_every_format(name: str, syntax: str) -> None:
    before, behind, quoted = CALLS[name]
    tool = custom_tool("p", "", syntax, LARK if syntax == "lark" else r"(\+.*\n)+")
    grammar = FORMATS[name].grammar([tool], forced=True, parallel=False)
    for text, fits in (('+a "b" \\\n+\n', True), ("a\n", False), ("+a", False), ("", False)):
        shown = json.dumps(text)[1:-1] if quoted else text
        call = before + shown + behind
        assert accepts(grammar, call) == fits, text
        if fits:
            parser = MessageReader(Reading(name, texts_of([tool]), custom=("p",)), "g")
            message = joined_message([parser.feed(call), parser.end()])
            assert [each.arguments for each in message.calls] == [text]


@pytest.mark.parametrize("name", CALLS)
def test_free_text_is_called_freely(name: str) -> None:
    tool = custom_tool("p", "")
    assert not tool.strict
    before, behind, quoted = CALLS[name]
    text = 'a "b" \\\n'
    call = before + (json.dumps(text)[1:-1] if quoted else text) + behind
    assert accepts(FORMATS[name].grammar([tool], forced=True, parallel=False), call)
