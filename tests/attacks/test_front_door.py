"""Attacks on the public API by callers without any rights. They are refused early and do not affect other callers."""

import asyncio
import contextlib
import json
import random
import time
from typing import Any

import grpc
import pytest

from specdec.errors import ContextLengthExceeded, FieldInvalid, MessageTooLarge
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.serving.rpc.status import from_rpc_error
from tests.attacks.attacked_gateway import Target
from tests.attacks.bystander import bystander

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

MOST_MEMORY = 100 * 2**20
"""Largest growth of the gateway's memory under an attack, in bytes."""
SLOWEST = 3.0
"""Longest time to a first token for an honest caller during an attack, in seconds, on a busy machine."""
GRPC = (("grpc.max_send_message_length", -1),)


class Memory:
    """Records the memory of the gateway during an attack."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = target.rss
        self.most = 0

    async def __aenter__(self) -> "Memory":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        assert self.most < MOST_MEMORY, f"grew by {self.most / 2**20:.0f} MiB"

    async def _watch(self) -> None:
        while True:
            self.most = max(self.most, self._target.rss - self._before)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "half",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-",
        b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"prompt": ',
    ],
    ids=["head", "body"],
)
async def test_half_sent_requests_are_closed_in_ten_seconds(target: Target, half: bytes) -> None:
    async with Memory(target):
        opened = [await asyncio.open_connection(*target.address) for _ in range(2000)]
        began = time.perf_counter()
        for _, writer in opened:
            writer.write(half)
        answers = await asyncio.wait_for(_all_closed(opened), 20)
        assert time.perf_counter() - began < 10
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
    assert not any(b"Traceback" in line for line in target.log)


async def _all_closed(opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> list[bytes]:
    answers = await asyncio.gather(*(reader.read() for reader, _ in opened))
    for _, writer in opened:
        writer.close()
    return answers


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        b"GET /livez HTTP/1.1\r\nX-Endless: ",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Endless: ",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ],
    ids=["url", "header", "trailer", "chunk extension"],
)
async def test_an_endless_head_ends_at_its_limit(target: Target, start: bytes) -> None:
    sent = 0
    async with Memory(target):
        _, writer = await asyncio.open_connection(*target.address)
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            for _ in range(600):
                writer.write(b"a" * 2**20)
                await writer.drain()
                sent += 1
        writer.close()
    assert sent < 100


@pytest.mark.parametrize(("size", "answer"), [(1, b"HTTP/1.1 400 "), (100, b"HTTP/1.1 200 ")])
async def test_a_body_comes_in_so_many_pieces(target: Target, size: int, answer: bytes) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode().ljust(4200 * size)
    reader, writer = await asyncio.open_connection(*target.address)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = (b"%x\r\n%b\r\n" % (size, body[start : start + size]) for start in range(0, len(body), size))
    writer.write(b"".join((head, *chunks, b"0\r\n\r\n")))
    read = await reader.read()
    writer.close()
    assert read.startswith(answer), read


async def test_a_large_head_that_is_whole_is_refused_as_one(target: Target) -> None:
    reader, writer = await asyncio.open_connection(*target.address)
    writer.write(
        b"GET /livez HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 1000) for i in range(100)) + b"\r\n"
    )
    head, body = (await reader.read()).split(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "message_too_large"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/models?" + b"a&" * 5000 + b" HTTP/1.1\r\n", b"414"),
        (b"GET /v1/models HTTP/1.1\r\n" + b"a:\r\n" * 300, b"431"),
        (b"GET /v1/models HTTP/1.1\r\nCookie: " + b"a;" * 20_000 + b"\r\n", b"200"),
    ],
    ids=["query", "headers", "cookies"],
)
async def test_a_head_of_many_parts_is_refused(target: Target, head: bytes, status: bytes) -> None:
    reader, writer = await asyncio.open_connection(*target.address)
    writer.write(head + b"Connection: close\r\n\r\n")
    read = await reader.read()
    writer.close()
    assert read.startswith(b"HTTP/1.1 " + status), read


async def test_prompts_that_cannot_fit_are_refused_before_any_work(target: Target) -> None:
    text = "x " * 2_000_000
    bodies: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/v1/tokenize", {"prompt": text}, "prompt"),
        ("/v1/tokenize", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/v1/detokenize", {"tokens": [1] * 1_000_000}, "tokens"),
    ]
    _, session = await target.post("/v1/sessions", {})
    bodies.append(("/v1/completions", {"prompt": text, "session": session["id"]}, "prompt"))
    async with Memory(target), bystander(target.address) as honest:
        for path, body, field in bodies:
            for status, answer in await target.flood(path, body, 6):
                assert (status, answer["error"]["code"], answer["error"]["param"]) == (
                    400,
                    "context_length_exceeded",
                    field,
                )
    assert max(honest.waits) < SLOWEST, sorted(honest.waits)[-5:]


async def test_over_grpc_they_are_refused_alike(target: Target) -> None:
    text = "x " * 1_900_000
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=text)])
    async with grpc.aio.insecure_channel(target.grpc, options=GRPC) as channel, Memory(target):
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        for call, field in (
            (lambda: stub.Generate(pb.GenerateRequest(text=text)), "prompt"),
            (lambda: stub.Generate(pb.GenerateRequest(chat=chat)), "messages"),
            (lambda: stub.Tokenize(pb.TokenizeRequest(text=text)), "prompt"),
            (lambda: stub.Detokenize(pb.DetokenizeRequest(token_ids=[1] * 1_000_000)), "token_ids"),
        ):
            began = time.perf_counter()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call()
            error = from_rpc_error(refused.value)
            assert isinstance(error, ContextLengthExceeded)
            assert error.param == field
            assert time.perf_counter() - began < 2
        for size in (5, 40):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Generate(pb.GenerateRequest(text="x" * size * 2**20))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert isinstance(from_rpc_error(refused.value), MessageTooLarge) is (size == 5)


@pytest.mark.parametrize("user", ["loud", "honest"])
async def test_a_flood_of_the_largest_prompts_delays_nobody_elses_first_token(target: Target, user: str) -> None:
    letters = random.Random(3)
    text = "".join(letters.choice("abcdefgh \n(") for _ in range(target.longest_prompt))
    body = {"prompt": text, "user": user}
    async with Memory(target), bystander(target.address) as honest:
        answers = await target.flood("/v1/completions", body, 60)
    assert {answer["error"]["code"] for _, answer in answers} == {"context_length_exceeded", "queue_full"}
    assert max(honest.waits) < SLOWEST, sorted(honest.waits)[-5:]


@pytest.mark.parametrize("field", ["banned_token_ids", "allowed_token_ids", "stop_token_ids", "logit_bias", "stop"])
async def test_a_bomb_of_ids_is_refused_by_its_field(target: Target, field: str) -> None:
    count = 400_000
    bomb: dict[str, Any] = {
        "logit_bias": {str(token): 1 for token in range(count)},
        "stop": ["x"] * count,
    }
    body = {"prompt": "x", field: bomb.get(field, list(range(count)))}
    async with Memory(target):
        answers = await target.flood("/v1/completions", body, 6)
    for status, answer in answers:
        assert status in (400, 413)
        assert status == 413 or answer["error"]["param"] == field


async def test_over_grpc_a_bomb_of_ids_is_refused_by_its_field(target: Target) -> None:
    ids = list(range(200_000))
    async with grpc.aio.insecure_channel(target.grpc, options=GRPC) as channel:
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        for name, request in (
            ("banned_token_ids", pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(banned_token_ids=ids))),
            ("stop_token_ids", pb.GenerateRequest(text="x", stop=pb.StopOptions(stop_token_ids=ids))),
            ("stop", pb.GenerateRequest(text="x", stop=pb.StopOptions(stop=["x"] * 100_000))),
            ("logit_bias", pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(logit_bias=dict.fromkeys(ids, 1)))),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Generate(request)
            error = from_rpc_error(refused.value)
            assert isinstance(error, FieldInvalid)
            assert error.param == name


async def test_what_was_sent_is_neither_echoed_nor_logged_whole(target: Target) -> None:
    long = "y" * 3_000_000
    for body in ({"prompt": "x", long: 1}, {"prompt": "x", "model": long}, {"prompt": "x", "service_tier": long}):
        status, answer = await target.post("/v1/completions", body)
        assert status in (400, 404)
        assert len(json.dumps(answer)) < 4096
    status, answer = await target.post("/v1/" + "z" * 30_000, {})
    assert status == 414
    assert len(json.dumps(answer)) < 4096
    await asyncio.sleep(0.2)
    assert max(map(len, target.log)) < 20_000
