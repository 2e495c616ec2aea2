"""HTTP client behaviour: protocol upgrades, half-closed connections, slashes, compressed bodies, byte order marks."""

import asyncio
import gzip
import json
import socket
import zlib
from typing import Any

import httpx2
import pytest

from gateway.http.connection import AT_ONCE
from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import Script

BODY = json.dumps({"prompt": "x", "max_tokens": 8}).encode()
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
WEBSOCKET = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
TLS = "Connection: Upgrade\r\nUpgrade: TLS/1.2\r\n"


def head(extra: str, length: str) -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{extra}{length}\r\n\r\n".encode()


def sized(extra: str, body: bytes = BODY) -> bytes:
    return head(extra, f"Content-Length: {len(body)}") + body


def chunked(extra: str) -> bytes:
    parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:5], BODY[5:]))
    return head(extra, "Transfer-Encoding: chunked") + parts + b"0\r\n\r\n"


async def exchange(here: Stage, *parts: bytes, answers: int = 1, shut: bool = False) -> bytes:
    """Send these bytes one part at a time, and return the response up to `answers` answers or the end."""
    reader, writer = await asyncio.open_connection(*here.gateway.http.split(":"))
    got = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        if shut:
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 30)
        while got.count(b"text_completion") < answers and (more := await asyncio.wait_for(reader.read(65536), 30)):
            got += more
    finally:
        writer.close()
    return got


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET, TLS, "", "Upgrade: h2c\r\n"])
async def test_an_offer_is_ignored_and_the_body_read(here: Stage, offer: str) -> None:
    whole = sized(offer)
    for parts in ([whole], [whole[:-10], whole[-10:]], [whole[:60], whole[60:]], [chunked(offer)]):
        assert b" 200 " in (await exchange(here, *parts))[:20]


async def test_offers_and_plain_requests_share_a_connection(here: Stage) -> None:
    got = await exchange(here, sized(H2C) + sized("") + sized(WEBSOCKET) + chunked(H2C), answers=4)
    assert got.count(b" 200 ") == 4


async def test_a_get_with_an_offer_is_answered_and_a_connect_refused(here: Stage) -> None:
    asked = f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{H2C}Connection: close\r\n\r\n".encode()
    assert b'"data"' in await exchange(here, asked)
    assert b" 400 " in (await exchange(here, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"))[:20]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_has_shut_its_half_gets_the_whole_answer(here: Stage, stream: bool) -> None:
    here.verifier.script = Script(text="Hello, world.", pause=0.1)
    body = json.dumps({"prompt": "x", "stream": stream}).encode()
    got = await exchange(here, sized("", body), sized("", body), shut=True)
    finals = got.count(b"[DONE]") if stream else got.count(b'"finish_reason"')
    assert finals == 2
    assert got.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").startswith(b"HTTP/1.1 200")


async def test_a_client_that_has_left_ends_its_work(here: Stage) -> None:
    here.verifier.script = Script(text="x" * 200, pause=2.0)
    await exchange(here, sized("", BODY.replace(b"8", b"200")), answers=0)
    for _ in range(200):
        if here.verifier.cancelled:
            break
        await asyncio.sleep(0.05)
    assert here.verifier.cancelled == 1


async def test_requests_of_clients_that_leave_at_once_hardly_begin(here: Stage) -> None:
    host, port = here.gateway.http.split(":")
    for _ in range(40):
        with socket.create_connection((host, int(port)), 10) as connection:  # the loop does not run meanwhile
            connection.sendall(sized(""))
    await exchange(here, sized(""))
    await asyncio.sleep(0.3)
    assert len(here.verifier.calls) <= 2 * AT_ONCE + 1


async def test_half_closed_connections_take_turns_with_others_of_their_address(here: Stage) -> None:
    host, port = here.gateway.http.split(":")
    old = sized("", json.dumps({"prompt": "half", "max_tokens": 8}).encode()).replace(
        b"HTTP/1.1", b"HTTP/1.0"
    )  # such a client cannot be probed
    for _ in range(60):
        with socket.create_connection((host, int(port)), 10) as connection:  # the loop does not run meanwhile
            connection.sendall(old)
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(sized(""))
        for _ in range(600):
            prompts = [bytes(call.tokens).decode() for call in here.verifier.calls]
            if "x" in prompts:
                break
            await asyncio.sleep(0.05)
    assert prompts.index("x") < 30


async def test_half_a_request_is_closed(here: Stage) -> None:
    assert await exchange(here, sized("")[:-3], shut=True) == b""


@pytest.mark.parametrize("extra", ["", H2C])
async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(here: Stage, extra: str) -> None:
    reader, writer = await asyncio.open_connection(*here.gateway.http.split(":"))
    try:
        writer.write(sized(f"{extra}Expect: 100-continue\r\n", BODY)[: -len(BODY)])
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).startswith(b"HTTP/1.1 100 ")
        writer.write(BODY)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).startswith(b"HTTP/1.1 200 ")
    finally:
        writer.close()


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/messages", "/v1/chat/completions"])
async def test_other_methods_are_answered_or_refused_without_a_failure(here: Stage, method: str, path: str) -> None:
    async with httpx2.AsyncClient() as client:
        got = await client.request(method, f"{here.url}{path}")
        assert got.status_code in (200, 405)
        assert got.status_code == 200 or got.headers["allow"]
        assert method != "HEAD" or not got.content
        assert (await client.get(f"{here.url}/v1/models")).status_code == 200


async def post(here: Stage, path: str, raw: bytes, **headers: str) -> tuple[int, Any]:
    async with httpx2.AsyncClient() as client:
        got = await client.post(f"{here.url}{path}", content=raw, headers=headers)
        return got.status_code, got.json()


@pytest.mark.parametrize("path", ["/v1/completions/", "//v1/completions", "/v1//completions//"])
async def test_slashes_change_no_path(here: Stage, path: str) -> None:
    assert (await post(here, path, BODY))[0] == 200


async def test_a_byte_order_mark_is_read(here: Stage) -> None:
    assert (await post(here, "/v1/completions", b"\xef\xbb\xbf" + BODY))[0] == 200


@pytest.mark.parametrize(
    ("raw", "encoding", "status", "code"),
    [
        (gzip.compress(BODY, mtime=0), "gzip", 200, None),
        (gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0), "gzip", 200, None),
        (gzip.compress(b"", mtime=0) * 255 + gzip.compress(BODY, mtime=0), "gzip", 200, None),
        (gzip.compress(b"", mtime=0) * 256 + gzip.compress(BODY, mtime=0), "gzip", 400, "invalid_value"),
        (gzip.compress(BODY, mtime=0) + b"x", "gzip", 400, "invalid_value"),
        (zlib.compress(BODY), "deflate", 200, None),
        (zlib.compress(BODY)[2:-4], "deflate", 200, None),
        (BODY, "identity", 200, None),
        (BODY, "br", 415, "unsupported_encoding"),
        (BODY, "gzip", 400, "invalid_value"),
        (gzip.compress(BODY, mtime=0)[:-9], "gzip", 400, "invalid_value"),
        (gzip.compress(b" " * 10**7 + BODY, mtime=0), "gzip", 413, "message_too_large"),
    ],
)
async def test_a_compressed_body_is_read_or_refused(
    here: Stage, raw: bytes, encoding: str, status: int, code: str | None
) -> None:
    got, answer = await post(here, "/v1/completions", raw, **{"Content-Encoding": encoding})
    assert (got, answer.get("error", {}).get("code")) == (status, code)
