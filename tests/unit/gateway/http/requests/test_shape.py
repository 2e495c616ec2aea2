"""Bodies that take long to walk are refused by field name, and large ones are parsed in a worker."""

import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from starlette.requests import Request

from gateway.bounds import MAX_BRACKETS, MAX_COMMAS, MAX_MESSAGES, MAX_NESTING
from gateway.http.requests.bodies import BodyReader
from gateway.http.requests.body import is_quick, parse_json
from gateway.http.requests.completions import ChatBody, CompletionBody
from gateway.request import TextPrompt
from specdec.errors import FieldInvalid, MessageTooLarge, QueueFull, RequestError, TokenOutOfRange

MESSAGES = [{"role": "user", "content": "a"}]
MOST_LARGE = 36
"""Bodies of 4 MiB that a user may have at once: 3 in 4 of its address' 3 in 4 of 256 MiB."""


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": nested(MAX_NESTING + 1)}, "guided_json"),
        ({"chat_template_kwargs": {"x": [{}] * MAX_BRACKETS}}, "chat_template_kwargs"),
        ({"messages": [{"role": "user", "content": "{" * (MAX_BRACKETS + 1)}]}, "messages"),
        ({"logit_bias": [1] * (MAX_COMMAS + 2)}, "logit_bias"),
    ],
)
def test_a_body_with_too_much_in_it_is_refused_by_its_largest_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldInvalid) as refused:
        parse_json(json.dumps({"user": "a", **fields}).encode())
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": {"x": [1] * 5000}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": "a" * 300_000}}, "chat_template_kwargs"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
        ({"metadata": {str(each): "" for each in range(17)}}, "metadata"),
        ({"safety_identifier": "a" * 257}, "safety_identifier"),
        ({"prompt_cache_key": "a" * 257}, "prompt_cache_key"),
        ({"messages": MESSAGES * (MAX_MESSAGES + 1)}, "messages"),
    ],
)
def test_fields_that_nobody_counts_are_short(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        ChatBody.parse({"messages": MESSAGES, **fields})
    assert refused.value.param == param


def test_numbers_chosen_for_their_hash_are_refused_uncompared() -> None:
    primes = [(2**61 - 1) * (index + 1) for index in range(4096)]
    assert len({hash(prime) for prime in primes}) == 1
    with pytest.raises(TokenOutOfRange) as refused:
        CompletionBody.parse({"prompt": "a", "banned_token_ids": primes})
    assert refused.value.param == "banned_token_ids"


def test_what_fits_is_read() -> None:
    parse_json(json.dumps({"a": nested(MAX_NESTING - 1), "b": list(range(MAX_COMMAS // 2))}).encode())


def request(raw: bytes, declared: bool = True) -> Request:
    chunks = [raw[start : start + 50_000] for start in range(0, len(raw), 50_000)]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    headers = [(b"content-length", str(len(raw)).encode())] if declared else []
    state = {"at_end": AsyncExitStack()}
    return Request({"type": "http", "method": "POST", "headers": headers, "state": state}, receive)


@pytest.fixture
async def reader() -> AsyncIterator[BodyReader]:
    made = BodyReader(2**22, 10.0)
    yield made
    await made.close()


@pytest.mark.parametrize("declared", [True, False])
async def test_a_large_body_is_read_as_a_small_one_is(reader: BodyReader, declared: bool) -> None:
    body = {"prompt": [list(range(30_000)), "text"], "user": "a", "speculation": {"gamma": 3}, "stop": ["x"]}
    raw = json.dumps(body).encode()
    assert not is_quick(raw)
    assert await reader.read(request(raw, declared), CompletionBody) == CompletionBody.parse(body)


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_large_body_is_converted_off_the_event_loop(reader: BodyReader, size: int) -> None:
    asked = request(json.dumps({"prompt": "a" * size}).encode())
    body = await reader.read(asked, CompletionBody)
    assert body.prompt == (TextPrompt("a" * size),)
    here = await reader.convert(asked, threading.get_ident) == threading.get_ident()
    assert here == (size == 10)


async def test_large_bodies_of_one_caller_are_bounded_until_their_answers_end() -> None:
    reader, raw = BodyReader(2**22, 0.2), json.dumps({"prompt": "a" * (2**22 - 100)}).encode()
    asked = [request(raw) for _ in range(MOST_LARGE)]
    for each in asked:
        await reader.read(each, CompletionBody)
    with pytest.raises(QueueFull):
        await reader.read(request(raw), CompletionBody)
    assert await reader.read(request(b'{"prompt": "a"}'), CompletionBody), "small ones take no room"
    await asked[0].state.at_end.aclose()
    assert await reader.read(request(raw), CompletionBody)
    await reader.close()


async def test_a_mistake_in_a_large_body_has_its_name(reader: BodyReader) -> None:
    with pytest.raises(FieldInvalid) as refused:
        await reader.read(request(json.dumps({"prompt": "a" * 100_000, "stop": 5}).encode()), CompletionBody)
    assert refused.value.param == "stop"
    with pytest.raises(MessageTooLarge):
        await reader.read(request(b"a" * (2**22 + 1), declared=False), CompletionBody)
    assert (await reader.read(request(b'{"prompt": "a"}'), CompletionBody)).prompt
