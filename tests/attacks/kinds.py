"""Requests that cost far more than they appear to, by kind, in small or large form, run in the attacker's process.

A kind takes the addresses of the HTTP and the gRPC API and a size, which is 1 for the small form. It returns the
statuses of the answers it received.
"""

import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from typing import Any

from grpc import RpcError
from grpc import insecure_channel as grpc_channel

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.attacks.attacker import PROMPT, flood, post

Address = tuple[str, int]
Kind = Callable[[Address, Address, int], list[int]]

_SECONDS = 2.0
"""Duration of the small form of a kind that has no number of requests."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PING, _SETTINGS, _RESET, _HEADERS = 6, 4, 3, 1
"""Frame types of HTTP/2."""


def _posted(http: Address, path: str, body: Mapping[str, Any], count: int) -> list[int]:
    raw = json.dumps({"user": "mallory", "max_tokens": 2, **body}).encode()
    return [status for status, _ in flood(http, path, raw, count)]


def newlines(http: Address, grpc: Address, size: int) -> list[int]:
    """Send a grammar of newlines, which a naive reader scans in quadratic time."""
    return _posted(http, "/v1/completions", {"prompt": PROMPT, "guided_grammar": "\n" * 65_000}, 2 * size)


def chain(http: Address, grpc: Address, size: int) -> list[int]:
    """Send a grammar of rules that each name the next."""
    rules = "".join(f'r{each} ::= r{each + 1} | "a"\n' for each in range(1999))
    grammar = f'root ::= r0\n{rules}r1999 ::= "a"\n'
    return _posted(http, "/v1/completions", {"prompt": PROMPT, "guided_grammar": grammar}, 2 * size)


def schemas(http: Address, grpc: Address, size: int) -> list[int]:
    """Send different schemas of 40 bytes whose compilation does not end."""
    statuses: list[int] = []
    for each in range(2 * size):
        schema = {"type": "integer", "multipleOf": 1_000_003 + 2 * each}
        statuses += _posted(http, "/v1/completions", {"prompt": PROMPT, "guided_json": schema}, 1)
    return statuses


def empty_objects(http: Address, grpc: Address, size: int) -> list[int]:
    """Send megabytes of empty objects, for 16 choices."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "n": 16, "chat_template_kwargs": {"x": [{}] * 1_000_000}}
    return _posted(http, "/v1/chat/completions", body, 3 * size)


def nested(http: Address, grpc: Address, size: int) -> list[int]:
    """Send deeply nested values."""
    value: dict[str, Any] = {}
    for _ in range(400):
        value = {"a": value}
    body = {"messages": [{"role": "user", "content": PROMPT}], "chat_template_kwargs": value}
    return _posted(http, "/v1/chat/completions", body, 8 * size)


def unused_fields(http: Address, grpc: Address, size: int) -> list[int]:
    """Send megabytes in an unused field."""
    return _posted(http, "/v1/completions", {"prompt": PROMPT, "metadata": {"x": "a" * 4_000_000}}, 20 * size)


def pipelined(http: Address, grpc: Address, size: int) -> list[int]:
    """Pipeline endless requests on 8 connections, without reading the answers."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: _pipeline(http, _SECONDS * size), range(8)))
    return []


def _pipeline(http: Address, seconds: float) -> None:
    blob, end = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" * 4000, time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(http, 10) as connection:
            connection.settimeout(0.5)
            connection.sendall(blob)
        time.sleep(0.05)


def unread(http: Address, grpc: Address, size: int) -> list[int]:
    """Request streams of 16 choices without reading them."""
    body = json.dumps({"prompt": PROMPT, "n": 16, "max_tokens": 900, "stream": True, "user": "mallory"}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    connections = [socket.create_connection(http, 10) for _ in range(14)]
    for connection in connections:
        connection.sendall(head + body)
    time.sleep(_SECONDS * size)
    for connection in connections:
        connection.close()
    return []


def leavers(http: Address, grpc: Address, size: int) -> list[int]:
    """Request streams of 16 choices and leave at once."""
    body = json.dumps({"prompt": PROMPT, "n": 16, "max_tokens": 900, "stream": True, "user": "mallory"}).encode()
    raw = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for _ in range(50 * size):
        with suppress(OSError), socket.create_connection(http, 10) as connection:
            connection.sendall(raw)
    return []


def unknown_routes(http: Address, grpc: Address, size: int) -> list[int]:
    """Send megabytes to a route that does not exist, and very many headers and a WebSocket's offer to one that does."""
    statuses = _posted(http, "/v1/embeddings", {"input": "a" * 4_000_000}, 8 * size)
    offer = b"Connection: upgrade\r\nUpgrade: websocket\r\n"
    head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n%b%b\r\n" % (
        offer,
        b"".join(b"x-%d: y\r\n" % each for each in range(240)),
    )
    for _ in range(20 * size):
        with suppress(OSError), socket.create_connection(http, 10) as connection:
            connection.sendall(head * 16)
            connection.settimeout(0.5)
            connection.recv(1)
    return statuses


def metadata(http: Address, grpc: Address, size: int) -> list[int]:
    """Call over gRPC with as much metadata as is allowed."""
    pairs = [(f"x-{each}", "y" * 100) for each in range(100)]
    with grpc_channel(f"{grpc[0]}:{grpc[1]}") as channel, ThreadPoolExecutor(16) as threads:
        stub = pb_grpc.ModelServiceStub(channel)

        def call(_: int) -> None:
            with suppress(RpcError):
                stub.ListModels(pb.ListModelsRequest(), metadata=pairs, timeout=60)

        list(threads.map(call, range(400 * size)))
    return []


def pings(http: Address, grpc: Address, size: int) -> list[int]:
    """Send endless HTTP/2 pings."""
    for _ in _times(size):
        with _http2(grpc) as connection:
            for _ in _times(size):
                connection.sendall(_frame(_PING, 0, 0, b"12345678") * 200)
    return []


def resets(http: Address, grpc: Address, size: int) -> list[int]:
    """Open calls and reset them at once."""
    head = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/specdec.gateway.v1.ModelService/ListModels"),
            (b":authority", b"x"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )
    for _ in _times(size):
        with _http2(grpc) as connection:
            stream = 1
            for _ in _times(size):
                frames = b""
                for _ in range(100):
                    frames += _frame(_HEADERS, 4, stream, head) + _frame(_RESET, 0, stream, b"\0\0\0\x08")
                    stream += 2
                connection.sendall(frames)
    return []


def compressed(http: Address, grpc: Address, size: int) -> list[int]:
    """Send bodies of some kilobytes that decompress to 200 MB."""
    raw = gzip.compress(b'{"prompt": "' + PROMPT.encode() + b"a" * 200_000_000 + b'"}')
    statuses = []
    for _ in range(4 * size):
        with closing(HTTPConnection(*http, timeout=120)) as connection:
            connection.request("POST", "/v1/completions", raw, {"content-encoding": "gzip"})
            statuses.append(connection.getresponse().status)
    return statuses


def growing_schemas(http: Address, grpc: Address, size: int) -> list[int]:
    """Send schemas of some hundred bytes that a rewriter expands to billions of values."""
    names: dict[str, Any] = {"type": "string"}
    for _ in range(12):
        names = {"patternProperties": {"^[a-zA-Z0-9_.]$": names}}
    digits = {"pattern": r"^(?=[\d.]{1,999999999}0*$)\d{0,999999999}\.\d{0,999999999}0*$"}
    aheads = {"pattern": "^" + "(?=)" * 12_000}
    bodies = [{"prompt": PROMPT, "guided_json": schema} for schema in (names, digits, aheads)]
    return [status for body in bodies for status in _posted(http, "/v1/completions", body, 2 * size)]


def users(http: Address, grpc: Address, size: int) -> list[int]:
    """Send slow schemas under the names of 8 users at once."""
    schemas = [{"type": "integer", "multipleOf": 1_500_003 + 2 * each} for each in range(2 + 2 * size)]
    raws = [
        json.dumps({"prompt": PROMPT, "user": f"mallory{each % 8}", "guided_json": schema})
        for each, schema in enumerate(schemas)
    ]
    with ThreadPoolExecutor(len(raws)) as threads:
        return list(threads.map(lambda raw: post(http, "/v1/completions", raw.encode())[0], raws))


def made_up_users(http: Address, grpc: Address, size: int) -> list[int]:
    """Send requests under the names of 1,000 users, 100 at once."""
    raws = (json.dumps({"prompt": PROMPT, "max_tokens": 2, "user": f"made-up-{each}"}) for each in range(1000 * size))
    with ThreadPoolExecutor(100) as threads:
        return list(threads.map(lambda raw: post(http, "/v1/completions", raw.encode())[0], raws))


def chosen_hashes(http: Address, grpc: Address, size: int) -> list[int]:
    """Send lists of numbers that all have one hash."""
    ids = [(2**61 - 1) * each for each in range(1, 4097)]
    return _posted(http, "/v1/completions", {"prompt": PROMPT, "banned_token_ids": ids}, 8 * size)


def masks(http: Address, grpc: Address, size: int) -> list[int]:
    """Send a grammar of 39 bytes whose masks take long, for streams of a real model."""
    grammar = "start: s\ns: s s s s | T | \nT: /[ -~]/"
    body = {"prompt": PROMPT, "max_tokens": 200, "temperature": 1.5, "guided_grammar": grammar}
    return _posted(http, "/v1/completions", body, 4 * size)


def empty_masks(http: Address, grpc: Address, size: int) -> list[int]:
    """Allow only a token that the grammar of the request forbids, again and again, beside streams of a real model."""
    body = {"prompt": PROMPT, "max_tokens": 20, "guided_regex": "a+", "allowed_token_ids": [5]}
    return [status for _ in range(10) for status in _posted(http, "/v1/completions", body, 4 * size)]


def many_choices(http: Address, grpc: Address, size: int) -> list[int]:
    """Send grammars of tens of thousands of choices, names and references."""
    choices = [f"choice {each}" for each in range(20_000)]
    names = {"type": "object", "properties": {f"p{each}": {"enum": [each]} for each in range(4000)}}
    nested = {"$ref": "#/$defs/d0", "$defs": {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(3000)}}
    forms: list[dict[str, Any]] = [
        {"guided_choice": choices},
        {"guided_json": {"enum": choices[:4000]}},
        {"guided_json": names},
        {"guided_json": nested},
        {"guided_regex": "(" * 12 + "a" + "{1,99})" * 12},
        {"guided_regex": "(a*)*" * 500},
    ]
    return [status for form in forms for status in _posted(http, "/v1/completions", {"prompt": PROMPT, **form}, size)]


def long_ids(http: Address, grpc: Address, size: int) -> list[int]:
    """Send as many token ids as fit a body, special ones among them, for 16 choices."""
    ids = [0, *[1000 + each % 1000 for each in range(8000)]]
    return _posted(http, "/v1/completions", {"prompt": ids, "n": 16, "max_tokens": 2}, 8 * size)


def texts(http: Address, grpc: Address, size: int) -> list[int]:
    """Send megabytes in texts that no prompt contains."""
    big = "a" * 4_000_000
    call = {"id": big, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": PROMPT}]
    chats: list[dict[str, Any]] = [
        {"messages": [*messages, {"role": "assistant", "tool_calls": [call]}]},
        {"messages": [*messages, {"role": "tool", "content": "x", "tool_call_id": big}]},
        {"messages": [{"role": "user", "name": big, "content": PROMPT}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": big}}]}]},
        {"messages": messages, "user": big},
        {"messages": messages, "metadata": {big: "x"}},
        {"messages": messages, "stop": ["a" * 1000] * 4000},
        {"messages": messages, "logit_bias": {str(each): 1 for each in range(100_000)}},
        {"messages": messages, "tools": [{"type": "function", "function": {"name": "f", "description": big}}]},
        {"messages": messages, "response_format": {"type": "json_schema", "json_schema": {"name": big, "schema": {}}}},
    ]
    inputs: list[dict[str, Any]] = [
        {"input": big, "instructions": big[:99]},
        {"input": [{"type": "function_call_output", "call_id": big, "output": "x"}]},
        {"input": [{"type": "reasoning", "id": big, "summary": []}] * 2},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 20_000}]},
    ]
    found = [status for body in chats for status in _posted(http, "/v1/chat/completions", body, size)]
    found += [status for body in inputs for status in _posted(http, "/v1/responses", body, size)]
    blocks = [{"type": "text", "text": ""}] * 20_000
    found += _posted(http, "/v1/messages", {"messages": [{"role": "user", "content": blocks}]}, size)
    return found + _posted(http, "/tokenize", {"prompt": big}, size)


def tools(http: Address, grpc: Address, size: int) -> list[int]:
    """Offer as many strict tools as are allowed, with as much in them as fits a body."""
    schema = {"type": "object", "properties": {f"p{each}": {"anyOf": [{}, {}, {}]} for each in range(100)}}
    names = [f"f{each}" for each in range(128)]
    chat = [{"type": "function", "function": {"name": name, "parameters": schema, "strict": True}} for name in names]
    flat = [{"type": "function", "name": name, "parameters": schema, "strict": True} for name in names]
    own = [{"name": name, "input_schema": schema, "strict": True} for name in names]
    said = {"messages": [{"role": "user", "content": PROMPT}]}
    return [
        *_posted(http, "/v1/chat/completions", {**said, "tools": chat}, 4 * size),
        *_posted(http, "/v1/responses", {"input": PROMPT, "tools": flat, "max_tokens": None}, 4 * size),
        *_posted(http, "/v1/messages", {**said, "tools": own, "user": None}, 4 * size),
    ]


def messages(http: Address, grpc: Address, size: int) -> list[int]:
    """Send conversations of very many empty messages, for 16 choices."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": ""}] * 60_000, "n": 16}
    fewer = {**body, "messages": body["messages"][:8192]}
    return [
        *_posted(http, "/v1/chat/completions", body, 2 * size),
        *_posted(http, "/v1/chat/completions", fewer, 2 * size),
    ]


def likely_tokens(http: Address, grpc: Address, size: int) -> list[int]:
    """Ask for the likely tokens beside each token of 16 prompts and outputs."""
    body = {"prompt": [PROMPT * 100] * 16, "max_tokens": 500, "logprobs": 20, "prompt_logprobs": 20}
    return _posted(http, "/v1/completions", body, 2 * size)


def pieces(http: Address, grpc: Address, size: int) -> list[int]:
    """Send bodies in chunks of a byte."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ in range(8 * size):
        with suppress(OSError), socket.create_connection(http, 10) as connection:
            connection.sendall(head + b"1\r\na\r\n" * 500_000)
    return []


def parts(http: Address, grpc: Address, size: int) -> list[int]:
    """Send gRPC messages of very many empty parts."""
    message = pb.GenerateRequest(user="mallory")
    message.chat.messages.extend([pb.ChatMessage()] * 1_000_000)
    with grpc_channel(f"{grpc[0]}:{grpc[1]}") as channel:
        stub = pb_grpc.GenerationServiceStub(channel)
        for _ in range(4 * size):
            with suppress(RpcError):
                stub.Generate(message)
    return []


KINDS: Mapping[str, Kind] = {
    kind.__name__: kind
    for kind in (
        newlines,
        chain,
        schemas,
        empty_objects,
        nested,
        unused_fields,
        compressed,
        pipelined,
        unread,
        leavers,
        unknown_routes,
        metadata,
        pings,
        resets,
        growing_schemas,
        many_choices,
        long_ids,
        texts,
        users,
        made_up_users,
        chosen_hashes,
        tools,
        messages,
        likely_tokens,
        pieces,
        parts,
    )
}


SERVED_KINDS: Mapping[str, Kind] = {each.__name__: each for each in (masks, empty_masks)}
"""Kinds that need a real model."""


def _times(size: int) -> Iterator[None]:
    end = time.monotonic() + _SECONDS * size
    while time.monotonic() < end:
        yield


@contextmanager
def _http2(grpc: Address) -> Iterator[socket.socket]:
    """Open a connection and send the preface. The context ends when the other side closes the connection."""
    with suppress(OSError), socket.create_connection(grpc, 10) as connection:
        connection.settimeout(0.5)
        connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
        yield connection


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
