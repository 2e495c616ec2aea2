"""Calls as models write them when they do not keep to their format: none is lost, and neither is any text."""

import json
from collections.abc import Callable, Sequence

import pytest

from gateway.tools.json_calls import JsonObject
from gateway.tools.message_reader import MessageReader, ReadMessage, joined_message
from gateway.tools.reading import Reading
from gateway.tools.xml_calls import XmlParser

T, E = "<tool_call>", "</tool_call>"
V3_BEGIN, V3_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
X_PARAMETER = "<parameter=x>\n1\n</parameter>\n</function>"
SAID = "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
ASKED = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
ONE: tuple[str, dict[str, object]] = ("f", {"x": 1})
BARE: tuple[str, dict[str, object]] = ("f", {})

ODD = [
    ("hermes", f'text {T}\n{{"name": "f", "arguments": {{"x": 1}}}}\n{E} after', "text  after", [ONE]),
    ("hermes", f"a {T}not json{E} b <tool_ca", f"a {T}not json{E} b <tool_ca", []),
    ("hermes", f'{T}{{"name":"f","arguments":{{"x":1}}}}\n{{"name":"f"}}{E}', "", [ONE, BARE]),
    ("hermes", f'{T}[{{"name":"f"}}, {{"name":"f","arguments":{{"x":"{E}"}}}}]{E}', "", [BARE, ("f", {"x": E})]),
    ("hermes", f'{T}{{"arguments": {{"x":"{E}"}}, "name":"f"}}{E} end', "end", [("f", {"x": E})]),
    ("hermes", f'{T}{{"name":"f","arguments":[]}}{E}', "", [BARE]),
    ("hermes", f'{T}{{"name":"f","arguments":"{{\\"x\\": \\"{E}\\"}}"}}{E}', "", [("f", {"x": E})]),
    ("hermes", f'{T}{{"name":"f","arguments":{{"x":1}}, "id": "a}}"}}{E}y', "y", [ONE]),
    ("hermes", f'{T}{T}{{"name":"f","arguments":{{"x":1}}}}{E}', T, [ONE]),
    ("hermes", f'{T}{{"name":"f","arguments":{{"x":1}}}} and {T}{{"name":"f"}}{E}', "and", [ONE, BARE]),
    ("hermes", f'{T}{{"name":"f","arguments":{{"x":1}}}}\n{T}{{"name":"f"}}', "", [ONE, BARE]),
    ("qwen3_coder", f"{T}\n<function=f>\n{X_PARAMETER}\n<function=f>\n</function>\n{E}", "", [ONE, BARE]),
    ("qwen3_coder", f"so <function=f>\n{X_PARAMETER}\n{E}\n{T}\n<function=f>\n</function>\n{E}", "so", [ONE, BARE]),
    ("qwen3_coder", f"<function=f>\n{X_PARAMETER}", "", [ONE]),
    ("qwen3_coder", "write <function=name> so", "write <function=name> so", []),
    (
        "qwen3_coder",
        f"{T}\n<function=f>\n<parameter=s>\na </parameter> b\n</parameter>\n</function>\n{E}",
        "",
        [("f", {"s": "a </parameter> b"})],
    ),
    ("glm", f"ok {T}f\n{E} b", "ok  b", [BARE]),
    ("llama", 'Sure: <|python_tag|>{"name": "f", "parameters": {"x": 1}}', "Sure: ", [ONE]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}, {"name":"f"}]', "", [ONE, BARE]),
    ("mistral", 'so [TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}] tail', "so tail", [BARE]),
    ("mistral_v11", '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}', "", [ONE, BARE]),
    ("mistral_v11", "[TOOL_CALLS]f[ARGS]", "", [BARE]),
    (
        "deepseek_v31",
        f'{V3_BEGIN}f{SEP}{V3_END}{V3_BEGIN}f{SEP}"{{\\"x\\": 1}}"{V3_END}',
        "",
        [BARE, ONE],
    ),
    ("deepseek_v3", f"{V3_BEGIN}function{SEP}f\n```json\n\n```{V3_END}", "", [BARE]),
    ("kimi", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|><|tool_call_end|>", "", [BARE]),
    ("gpt-oss", f'<|channel|>commentary<|message|>So.<|end|>{SAID}{{"x": 1}}<|call|>', "So.", [ONE]),
    ("gpt-oss", f"{ASKED}<|call|>", "", [BARE]),
    ("gpt-oss", f'{ASKED}"{{\\"x\\": 1}}"<|call|>', "", [ONE]),
    ("gpt-oss", f"{ASKED}ls -l<|call|>", "", [("f", {"arguments": "ls -l"})]),
]


def read(name: str, parts: Sequence[str]) -> tuple[ReadMessage, bool]:
    """Return the message of an answer, and whether all of its calls are complete."""
    reader = MessageReader(Reading(name, {"f": ["s"]}), "g")
    message = joined_message([*map(reader.feed, parts), reader.end()])
    return message, reader.called


@pytest.mark.parametrize(("name", "text", "content", "calls"), ODD, ids=range(len(ODD)))
def test_calls_out_of_form_are_found_and_nothing_is_lost(
    name: str, text: str, content: str, calls: Sequence[tuple[str, dict[str, object]]]
) -> None:
    for size in (1, 2, 3, 7, len(text)):
        message, called = read(name, [text[at : at + size] for at in range(0, len(text), size)])
        assert message.content == content
        assert [(each.name, json.loads(each.arguments)) for each in message.calls] == list(calls)
        assert called is bool(calls)


@pytest.mark.parametrize(("name", "text"), [(each[0], each[1]) for each in ODD], ids=range(len(ODD)))
def test_a_call_that_is_cut_anywhere_is_no_whole_call(name: str, text: str) -> None:
    for at in range(1, len(text)):
        message, called = read(name, [text[:at]])
        assert not called or all(json.loads(each.arguments) is not None for each in message.calls)


@pytest.mark.parametrize(
    ("name", "start", "again"),
    [
        ("hermes", f'{T}{{"a": "', E),
        ("hermes", f'{T}[{{"a": "', E),
        ("qwen3_coder", f"{T}<function=f><parameter=x>", E),
        ("qwen3_coder", "<function=f><parameter=x>", "</function>"),
        ("mistral", '[TOOL_CALLS] [{"name":"f","arguments":{},"i":"', "}, "),
    ],
)
def test_text_of_a_call_without_an_end_is_looked_at_once(
    name: str, start: str, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    for owner, look in ((JsonObject, "_has"), (XmlParser, "_in_value")):
        monkeypatch.setattr(owner, look, _counting(getattr(owner, look), looks))
    text = start + 200 * again
    message, _ = read(name, [start, *[again] * 200])
    assert text.endswith(message.content)
    assert 0 < len(looks) <= 2 * len(text)


def _counting(real: Callable[..., bool], looks: list[int]) -> Callable[..., bool]:
    def counted(*given: object) -> bool:
        looks.append(1)
        return real(*given)

    return counted
