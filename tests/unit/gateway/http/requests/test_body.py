"""A request body is read up to its limit and no further."""

import json
from collections.abc import AsyncIterator

import pytest

from gateway.bounds import MAX_IDS
from gateway.http.requests.body import MAX_FIELDS, parse_json, read_body
from gateway.http.requests.completions import ChatBody, CompletionBody
from specdec.errors import FieldInvalid, MessageTooLarge


class Chunks:
    """A body in pieces that counts the pieces read."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            yield chunk


async def test_a_body_within_the_limit_is_read_whole() -> None:
    assert await read_body(aiter(Chunks(b"ab", b"cd")), "4", 4) == b"abcd"


async def test_a_body_that_declares_too_much_is_not_read_at_all() -> None:
    chunks = Chunks(b"ab")
    with pytest.raises(MessageTooLarge):
        await read_body(aiter(chunks), "5", 4)
    assert chunks.read == 0


async def test_a_body_that_grows_too_large_is_read_no_further() -> None:
    chunks = Chunks(b"ab", b"cd", b"e", b"f", b"g")
    with pytest.raises(MessageTooLarge):
        await read_body(aiter(chunks), None, 4)
    assert chunks.read == 3


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"a": "\\ud83d"}', "a"),
        (b'{"a": [1, {"b": ["x", "\\udc00"]}]}', "a[1].b[1]"),
        (b'{"a": {"\\ud83d": 1}}', "a"),
    ],
)
def test_half_of_a_surrogate_pair_is_found_at_any_depth(raw: bytes, path: str) -> None:
    with pytest.raises(FieldInvalid) as refused:
        parse_json(raw)
    assert refused.value.param == path
    assert parse_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "logit_bias": {str(token): 1 for token in range(MAX_IDS + 1)}}, "logit_bias"),
        ({"prompt": "x", "banned_token_ids": list(range(MAX_IDS + 1))}, "banned_token_ids"),
        ({"prompt": "x", "allowed_token_ids": list(range(MAX_IDS + 1))}, "allowed_token_ids"),
        ({"prompt": "x", "stop_token_ids": [1] * (MAX_IDS + 1)}, "stop_token_ids"),
        ({"prompt": "x", "stop": ["x"] * 17}, "stop"),
        ({"prompt": "x", "banned_token_ids": ["a"] * 100_000}, "banned_token_ids[0]"),
        ({"prompt": "x"} | {f"a{index}": 0 for index in range(MAX_IDS)}, ""),
    ],
)
def test_what_is_too_many_is_refused_by_its_field(body: dict[str, object], param: str) -> None:
    with pytest.raises(FieldInvalid) as refused:
        CompletionBody.parse(parse_json(json.dumps(body).encode()))
    assert refused.value.param == param


def test_repeated_ids_and_stop_strings_count_once() -> None:
    lists = {"banned_token_ids": [5, 6, 5], "allowed_token_ids": [7, 7], "stop_token_ids": [8] * MAX_IDS}
    body = CompletionBody.parse({"prompt": "x", "stop": ["a", "b", "a"]} | lists)
    request = body.request("r")
    assert (request.sampling.banned_token_ids, request.sampling.allowed_token_ids) == ((5, 6), (7,))
    assert (request.stop_token_ids, request.stop) == ((8,), ("a", "b"))


def test_a_whole_number_may_be_written_with_a_point() -> None:
    body = parse_json(b'{"a": 16.0, "b": [1e2], "c": 1.5, "d": 1e400}')
    assert body == {"a": 16, "b": [100], "c": 1.5, "d": float("inf")}
    assert type(body["a"]) is type(body["b"][0]) is int


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("tools[0].function.parameters.properties", {"tools": [{"function": {"parameters": {"properties": ...}}}]}),
        ("tools[0].input_schema", {"tools": [{"input_schema": ...}]}),
        ("guided_json.enum[0]", {"guided_json": {"enum": [...]}}),
        (
            "messages[1].tool_calls[0].function.arguments",
            {"messages": [0, {"tool_calls": [{"function": {"arguments": ...}}]}]},
        ),
        ("unknown.field", {"unknown": {"field": ...}}),
    ],
)
def test_an_object_of_too_many_fields_is_found_at_any_depth(path: str, body: dict[str, object]) -> None:
    most, more = ({str(each): 1 for each in range(count)} for count in (MAX_FIELDS, MAX_FIELDS + 1))
    assert parse_json(json.dumps(body, default=lambda _: most).encode())
    with pytest.raises(FieldInvalid, match=f"has more than {MAX_FIELDS} fields") as refused:
        parse_json(json.dumps(body, default=lambda _: more).encode())
    assert refused.value.param == path


def test_the_schema_of_a_tool_is_kept_as_text() -> None:
    schema = {"type": "object", "properties": {"ü": {"minimum": 1.5}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = ChatBody.parse({"messages": [{"role": "user", "content": "x"}], "tools": [tool]})
    assert body.tools is not None
    assert body.tools[0].function is not None
    assert body.tools[0].function.parameters == json.dumps(schema, ensure_ascii=False)
    assert body.asked().tools[0].schema == schema


@pytest.mark.parametrize("schema", [3, "x", []])
def test_the_schema_of_a_tool_is_an_object(schema: object) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(FieldInvalid) as refused:
        ChatBody.parse({"messages": [{"role": "user", "content": "x"}], "tools": [tool]})
    assert refused.value.param == "tools[0].function.parameters"
