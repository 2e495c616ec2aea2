"""Conversations with calls reach chat templates in the form that these read: ids, arguments and empty contents."""

from typing import Any

import pytest

from gateway.request import ChatPrompt
from gateway.text.tokenizer import ModelTokenizer
from gateway.tools.arguments import HugeNumbers
from gateway.tools.turns import turns_of
from gateway.tools.values import Message, ToolCall
from tests.support.tokenizers_apart import byte_level, fast

IDS = ("call_0123456789abcdef01234567", "", "toolu_1", "abcDEF123", "functions.f:0")
TALK = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if m.tool_calls %}CALLS{% endif %}{% endfor %}"
MISTRAL = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    '{{ raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{% endif %}'
    "[TOOL_CALLS][{{ c.function | tojson }}]{{ c.id }}{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('no id') }}{% endif %}"
    "[TOOL_RESULTS]{{ m.tool_call_id }}{% endif %}{% endfor %}"
)
KIMI = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }};{% endfor %}"
    "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }};{% endif %}{% endfor %}"
)
JOINED = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{{ '<' + c['function']['name'] + '\n' + c['function']['arguments'] + '>' }}{{ c.function.arguments }}"
    "{% endfor %}{{ m.content }}{% endfor %}"
)
LLAMA = (
    "{% for m in messages %}{% if m.tool_calls %}{% if not m.tool_calls | length == 1 %}"
    '{{ raise_exception("This model only supports single tool-calls at once!") }}{% endif %}'
    "{{ m.content }}({{ m.tool_calls[0].function | tojson }})"
    "{% else %}{{ m.role }}:{{ m.content }}{% endif %}{% endfor %}"
)

PRINTED = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}{% endfor %}"
EITHER = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)

_CALL = "{{ m.tool_calls[0]['function']['name'] + ' ' + m.tool_calls[0]['function']['arguments'] }}"
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}<calls>"
    + _CALL
    + "{% elif m.role == 'assistant' and m.content is not none %}<said>{{ m.content }}"
    "{% else %}{{ m.role }}:{{ m.content }}{% endif %}{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{{ '-' if m.content is none else '[' + m.content + ']' }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}{% endfor %}"
)
TRIMMED = (
    "{% for m in messages %}{{ m.content | trim }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
    "{% endfor %}"
)


def tokenizer(template: str) -> ModelTokenizer:
    made = fast(byte_level((), ["<|end|>"]), "<|end|>")
    made.chat_template = template
    return ModelTokenizer(made)


def rendered(template: str, *messages: Message) -> str:
    made = tokenizer(template)
    return made.decode(made.encode(ChatPrompt(messages, opens_answer=False)))


def called(call_id: str, arguments: str = "{}") -> Message:
    return Message("assistant", "", (ToolCall("f", arguments, call_id),))


def result(call_id: str) -> Message:
    return Message("tool", "ok", (), call_id)


@pytest.mark.parametrize("call_id", [each for each in IDS if each])
def test_any_id_is_one_that_mistral_s_templates_take(call_id: str) -> None:
    text = rendered(MISTRAL, Message("user", "x"), called(call_id), result(call_id))
    own = text.partition("[TOOL_RESULTS]")[2]
    assert len(own) == 9
    assert f"{own}[TOOL_RESULTS]{own}" in text
    assert call_id != "abcDEF123" or own == call_id


def test_kimi_s_templates_find_the_name_and_the_number_in_the_id() -> None:
    messages = (called("call_a"), result("call_a"), called("functions.f:1"), result("functions.f:1"), called("c"))
    text = rendered(KIMI, Message("user", "x"), *messages, result("c"), result("other"))
    ids = [f"functions.f:{index}" for index in range(3)]
    pairs = "".join(f"<|tool_call_begin|>{each};## Return of {each};" for each in ids)
    assert text == f"{pairs}## Return of other;"


@pytest.mark.parametrize("tool_format", ["hermes", "llama", "qwen3_coder"])
def test_other_formats_keep_the_callers_ids(tool_format: str) -> None:
    for call_id in IDS:
        call, answer = turns_of([called(call_id), result(call_id)], tool_format, HugeNumbers("~"))
        calls: Any = call["tool_calls"]
        assert (calls[0]["id"], answer.get("tool_call_id", "")) == (call_id, call_id)


@pytest.mark.parametrize("template", [JOINED, EITHER])
def test_a_template_may_join_arguments_to_a_text(template: str) -> None:
    arguments = '{"a": "é <|end|>", "n": 1e400}'
    text = rendered(template, Message("user", "x"), called("1", arguments))
    assert text == (f"x<f\n{arguments}>{arguments}" if template is JOINED else f"f{arguments}")


def test_arguments_are_objects_wherever_a_template_takes_them() -> None:
    talk = (Message("user", "x"), called("1", '{"a": 1}'))
    assert rendered(MISTRAL, *talk, result("1")).startswith('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]')
    assert rendered(TALK, *talk) == "user:xassistant:CALLS"
    assert "'arguments': " in rendered(PRINTED, *talk)


@pytest.mark.parametrize("template", [LLAMA, LLAMA.replace("length == 1", "length")])
def test_several_calls_are_messages_of_one_call_where_a_template_takes_one(template: str) -> None:
    calls = (ToolCall("f", "{}", "1"), ToolCall("g", '{"a": 1}', "2"))
    said = Message("assistant", "Well.", calls, reasoning="so")
    text = rendered(template, Message("user", "x"), said, result("1"), result("2"))
    one, other = '({"name": "f", "arguments": {}})', '({"name": "g", "arguments": {"a": 1}})'
    assert text == f"user:xWell.{one}{other}tool:oktool:ok"
    made = tokenizer(template)
    turn = ChatPrompt((result("1"), result("2")), called=calls, opens_answer=False)
    assert made.decode(made.encode_after(turn, (5,))) == "tool:oktool:ok"
    assert rendered(MISTRAL, Message("user", "x"), said).count("[TOOL_CALLS]") == 2


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (DEEPSEEK, "user:x<calls>f {}tool:ok<said>Hm."),
        (BOTH, '[x]-{"name": "f", "arguments": {}}[ok][Hm.]'),
        (BOTH.replace("-", "null"), '[x][]{"name": "f", "arguments": {}}[ok][Hm.]'),
        (TRIMMED, 'x[{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]okHm.'),
        (JOINED, "x<f\n{}>{}okHm."),
    ],
)
def test_calls_alone_have_no_content_where_a_template_does_not_write_that(template: str, shown: str) -> None:
    talk = (Message("user", "x"), called("1"), result("1"), Message("assistant", "Hm."))
    assert rendered(template, *talk) == shown
    empty, text = Message("assistant", ""), Message("assistant", "So.", called("1").tool_calls)
    assert "None" not in rendered(template, Message("user", "x"), empty, text)


@pytest.mark.parametrize("template", [DEEPSEEK, BOTH])
def test_the_result_of_a_call_alone_is_the_next_turn(template: str) -> None:
    made = tokenizer(template)
    turn = ChatPrompt((result("1"),), called=called("1").tool_calls, opens_answer=False)
    assert made.decode(made.encode_after(turn, (5,))) == ("tool:ok" if template is DEEPSEEK else "][ok]")
