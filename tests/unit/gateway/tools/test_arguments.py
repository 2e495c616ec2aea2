"""Arguments of earlier calls, in the forms that clients store, are parsed as an object without loss."""

import json
import random
from typing import Any

import pytest

from gateway.tools.arguments import HugeNumbers, arguments_object, arguments_text

MARK = "\u241f"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        (None, {}),
        ("", {}),
        (" ", {}),
        ("null", {}),
        ("[]", {}),
        ([], {}),
        ("[1]", {"arguments": [1]}),
        ("5", {"arguments": 5}),
        (5, {"arguments": 5}),
        ("path=a", {"arguments": "path=a"}),
        ("{}{}", {"arguments": "{}{}"}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"path": "a.py", "text": "de', {"path": "a.py", "text": "de"}),
        ('{"path": "a.py", "te', {"path": "a.py"}),
        ('{"a": [1, {"b": 2', {"a": [1, {"b": 2}]}),
        ("{", {}),
        ('{"a": NaN}', {"a": None}),
    ],
)
def test_arguments_in_any_form_are_an_object(given: Any, expected: Any) -> None:
    assert arguments_object(arguments_text(given), float) == expected


def test_a_whole_object_keeps_its_text() -> None:
    text = '{"z":1e2, "a": 9223372036854775808, "s": "Grüße"}'
    assert arguments_text(text) == text


def test_arguments_cut_anywhere_are_an_object() -> None:
    whole = json.dumps({"path": "a/ü.py", "lines": [1, 2.5, None], "deep": {"on": True, "quote": '\\"'}})
    for end in range(len(whole) + 1):
        for text in (whole[:end], whole[end:]):
            json.loads(arguments_text(text))


def test_random_texts_are_an_object() -> None:
    drawn = random.Random(7)
    for _ in range(500):
        text = "".join(drawn.choices('{}[]",: \\ue0tnfa1-.', k=drawn.randrange(20)))
        assert isinstance(arguments_object(arguments_text(text), float), dict)


def test_a_number_that_no_float_holds_is_written_as_it_came() -> None:
    huge = HugeNumbers(MARK)
    value = arguments_object('{"a": 1e400, "b": [-1e999], "c": "1e400"}', huge.keep)
    rendered = f"{json.dumps(value, ensure_ascii=False)} {value['a']}"
    assert huge.restore(rendered) == '{"a": 1e400, "b": [-1e999], "c": "1e400"} 1e400'
