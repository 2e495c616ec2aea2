"""The HTTP API on a real socket: accepted bytes and sent bytes."""

import asyncio
import json
import socket
import time
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from gateway.http import connection, routes
from gateway.http.connection import MAX_PIPELINED
from specdec.cli.local.ports import free
from specdec.errors import InternalError
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts, until

GOOD = {"model": "bytes", "prompt": "Say it"}


async def raw(here: Stage, request: bytes) -> tuple[int, dict[str, Any]]:
    """Send bytes on a new connection and return status and body of the answer."""
    reader, writer = await asyncio.open_connection(*here.gateway.http.split(":"))
    writer.write(request)
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    body = json.loads(await reader.readexactly(length))
    writer.close()
    return int(head.split()[1]), body


def posted(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % size + body


async def works(here: Stage) -> bool:
    status, body = await raw(here, posted(json.dumps(GOOD).encode()))
    return status == 200 and body["choices"][0]["text"] == Script().text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"model": "bytes", "prompt": "\xff\xfe"}', "byte 30 is 0xff"),
        (b'{"model": "bytes", "prompt": "Say', "line 1 column 30"),
        (b'{"model": "bytes", "prompt": "Say", "temperature": NaN}', "temperature: input should be a finite number"),
        (b'{"model": "bytes", "prompt": "\\ud83d"}', "prompt: half of a surrogate pair"),
        (b'["Say it"]', "must be a JSON object"),
        (b"[" * 60000, "nested too deep"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too long"),
        (b"", "empty"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_and_the_next_request_works(
    here: Stage, body: bytes, says: str
) -> None:
    status, answer = await raw(here, posted(body))
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert says in answer["error"]["message"]
    assert await works(here)


async def test_a_body_that_declares_too_much_is_refused_before_it_is_sent(here: Stage) -> None:
    status, answer = await raw(here, posted(b"{", length=10**9))
    assert (status, answer["error"]["code"]) == (413, "message_too_large")
    assert await works(here)


async def test_a_body_that_grows_too_large_is_refused_before_it_ends(here: Stage) -> None:
    chunk = b"%x\r\n" % 40000 + b" " * 40000 + b"\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, answer = await raw(here, head + chunk + chunk)
    assert (status, answer["error"]["code"]) == (413, "message_too_large")
    assert await works(here)


async def test_a_large_body_sent_whole_gets_its_answer(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        answer = await client.post("/v1/completions", content=b" " * 8 * 2**20)
        assert answer.status_code == 413
        assert (await client.post("/v1/completions", json=GOOD)).status_code == 200


async def test_the_event_stream_is_what_openai_clients_and_proxies_expect(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        answer = await client.post("/v1/completions", json=GOOD | {"stream": True}, headers={"x-request-id": "mine"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"] == "mine"
    *events, last, rest = answer.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["object"] == "text_completion" for event in events)


ASKING: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"stream_options": {"resumable": True}}, {}),
    ({}, {"specdec-resumable": "true"}),
]


@pytest.mark.parametrize(("body", "headers"), ASKING)
async def test_events_have_ids_where_the_caller_asks_for_them(
    here: Stage, body: dict[str, Any], headers: dict[str, str]
) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        answer = await client.post("/v1/completions", json=GOOD | {"stream": True} | body, headers=headers)
    *events, last, _ = answer.text.split("\n\n")
    assert last == "data: [DONE]"
    generation = next(iter(here.store.sessions))
    positions = [event.split("\n")[0] for event in events]
    assert positions == [f"id: {generation}-1.{n}" for n in (4, 8, 12, 14, 14)]


async def test_the_header_that_asks_for_ids_is_true_or_false(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        headers = {"specdec-resumable": "yes"}
        answer = await client.post("/v1/completions", json=GOOD | {"stream": True}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Specdec-Resumable")


@pytest.mark.parametrize(("body", "headers"), [({}, {}), *ASKING])
async def test_a_left_stream_ends_within_a_second_unless_it_can_be_resumed(
    body: dict[str, Any], headers: dict[str, str]
) -> None:
    async with stage(grace=3600.0) as here, httpx2.AsyncClient(base_url=here.url) as client:
        here.verifier.script = Script(text="x" * 200, gamma=0, pause=0.005)  # takes a second or more to finish
        asked = GOOD | {"stream": True, "max_tokens": 200} | body
        async with client.stream("POST", "/v1/completions", json=asked, headers=headers) as answer:
            await anext(answer.aiter_lines())
        if body or headers:
            await asyncio.sleep(1.0)
            assert here.verifier.cancelled == 0
        else:
            await until(lambda: here.verifier.cancelled == 1)


async def test_silence_is_filled_with_comments() -> None:
    async with stage(ping=0.02) as here, httpx2.AsyncClient(base_url=here.url) as client:
        here.verifier.script = Script(text="ab", gamma=0, pause=0.1)
        answer = await client.post("/v1/completions", json=GOOD | {"stream": True})
    assert ": ping\n" in answer.text
    assert ": ping\n\n" not in answer.text, "some clients take a blank line for the end of an event"
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_an_error_in_mid_stream_is_the_last_event(here: Stage) -> None:
    here.verifier.failures = [(1, InternalError("oh"))]
    async with httpx2.AsyncClient(base_url=here.url) as client:
        answer = await client.post("/v1/completions", json=GOOD | {"stream": True})
    assert answer.status_code == 200
    last = answer.text.rstrip("\n").split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {"message": "oh", "type": "server_error", "param": None, "code": None}
    }


@pytest.mark.parametrize(
    ("broken", "method", "path"),
    [("ModelList", "GET", "/v1/models"), ("answer_format_of", "POST", "/v1/completions")],
)
async def test_a_bug_has_the_same_error_body(
    here: Stage, monkeypatch: pytest.MonkeyPatch, broken: str, method: str, path: str
) -> None:
    monkeypatch.setattr(routes, broken, None)
    async with httpx2.AsyncClient(base_url=here.url) as client:
        answer = await client.request(method, path, json=GOOD, headers={"x-request-id": "mine"})
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "mine"
    assert answer.json()["error"]["message"] == "internal error, request id mine"


async def test_paths_and_methods_that_are_not_there_have_the_same_error_body(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        for method, path, status in (
            ("GET", "/v1/nothing", 404),
            ("GET", "/v1/completions", 405),
            ("PUT", "/livez", 405),
        ):
            answer = await client.request(method, path)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert answer.headers["x-request-id"]


async def test_probes_name_what_is_missing(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).json()["missing"] == []
        here.store.down = True
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["missing"] == ["the session store does not answer"]
        assert "specdec_session_store_up 0.0" in (await client.get("/metrics")).text
        refused = await client.post("/v1/completions", json=GOOD)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "session_store_down"
        here.store.down = False
        assert (await client.post("/v1/completions", json=GOOD)).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert "specdec_session_store_up 1.0" in (await client.get("/metrics")).text


async def test_an_admin_address_takes_metrics_and_details_away_from_callers() -> None:
    admin = f"127.0.0.1:{free('127.0.0.1')}"
    async with stage(admin=admin) as here, httpx2.AsyncClient() as client:
        told = (await client.get(f"http://{admin}/readyz")).json()
        assert (told["missing"], list(told["verifiers"].values())) == ([], ["ready"])
        assert "specdec_verifier_up" in (await client.get(f"http://{admin}/metrics")).text
        assert (await client.get(f"http://{admin}/livez")).status_code == 200
        assert (await client.get(f"http://{admin}/v1/models")).status_code == 404
        public = await client.get(f"{here.url}/readyz")
        assert (public.status_code, public.json()) == (200, {"status": "ready"})
        assert (await client.get(f"{here.url}/metrics")).status_code == 404
        here.store.down = True
        public = await client.get(f"{here.url}/readyz")
        assert (public.status_code, public.json()) == (503, {"status": "not ready"})


async def test_a_verifier_with_another_tokenizer_is_never_used() -> None:
    async with stage(poll=0.02) as here, httpx2.AsyncClient(base_url=here.url) as client:
        facts = here.verifier.facts
        here.verifier.facts = type(facts)(
            **{name: getattr(facts, name) for name in facts.__slots__} | {"tokenizer_hash": "other"}
        )

        async def refused() -> bool:
            return "refused" in str((await client.get("/readyz")).json()["missing"])

        async with asyncio.timeout(20):
            while not await refused():  # noqa: ASYNC110 - readiness is asked
                await asyncio.sleep(0.01)
        answer = await client.post("/v1/completions", json=GOOD)
        assert answer.status_code == 503
        assert "its tokenizer is not this gateway's" in answer.json()["error"]["message"]


async def test_metrics_count_requests_and_tokens(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        await client.post("/v1/completions", json=GOOD)
        await client.post("/v1/completions", json={})
        text = (await client.get("/metrics")).text
        assert "specdec_session_store_up 1.0" in text, "no request asked for readiness"
    assert 'specdec_requests_total{code="200",route="/v1/completions"} 1.0' in text
    assert 'specdec_requests_total{code="400",route="/v1/completions"} 1.0' in text
    assert 'specdec_tokens_total{kind="output"} 14.0' in text
    assert 'specdec_verifier_up{model="bytes",verifier="' in text


async def test_tokens_can_be_looked_at(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        answer = await client.post("/v1/tokenize", json={"prompt": "hi"})
        assert answer.json() == {"tokens": [104, 105], "count": 2, "max_model_len": 256}
        chat = await client.post("/v1/tokenize", json={"messages": [{"role": "user", "content": "hi"}]})
        assert bytes(chat.json()["tokens"]) == b"user: hi\n"
        assert (await client.post("/v1/detokenize", json={"tokens": [104, 105]})).json() == {"prompt": "hi"}
        for path, body in (
            ("tokenize", {}),
            ("tokenize", {"prompt": "a", "model": "x"}),
            ("detokenize", {"tokens": [999]}),
        ):
            assert (await client.post(f"/v1/{path}", json=body)).status_code in {400, 404}


async def test_the_description_has_every_body_and_no_loose_end(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        description = (await client.get("/openapi.json")).json()
    schemas = description["components"]["schemas"]
    text = json.dumps(description)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(schemas)
    assert {"temperature", "speculation", "ignore_eos", "min_tokens", "return_token_ids"} <= set(
        schemas["CompletionBody"]["properties"]
    )
    assert "speculative_decoding" in schemas["Metrics"]["properties"]
    assert description["paths"]["/v1/chat/completions"]["post"]["requestBody"]["required"] is True


async def test_a_bug_is_answered_with_a_request_id_and_nothing_else(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(here.store, "open", broken)
    async with httpx2.AsyncClient(base_url=here.url) as client:
        answer = await client.post("/v1/completions", json=GOOD, headers={"x-request-id": "r-1"})
    assert answer.status_code == 500
    assert "r-1" in answer.json()["error"]["message"]
    assert "secret" not in answer.text


async def test_draining_lets_what_runs_finish_and_takes_nothing_new(here: Stage) -> None:
    here.verifier.script = Script(text="abcdefgh", gamma=0, pause=0.05)
    async with httpx2.AsyncClient(base_url=here.url) as client:
        running = asyncio.create_task(client.post("/v1/completions", json=GOOD | {"stream": True}))
        await until(lambda: here.verifier.calls)
        draining = asyncio.create_task(here.gateway.drain())
        await asyncio.sleep(0.05)
        assert (await client.get("/readyz")).json()["missing"] == ["the gateway is shutting down"]
        refused = await client.post("/v1/completions", json=GOOD)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert (await running).text.endswith("data: [DONE]\n\n")
        await draining


async def test_what_cannot_finish_in_time_is_told_so() -> None:
    async with stage(drain={"limit": 0.05}) as here, httpx2.AsyncClient(base_url=here.url) as client:
        here.verifier.script = Script(text="x" * 200, gamma=0, pause=0.02)
        running = asyncio.create_task(client.post("/v1/completions", json=GOOD | {"stream": True, "max_tokens": 200}))
        await until(lambda: here.store.journal.count("commit") > 1)
        await here.gateway.drain()
        answer = await running
    last = json.loads(answer.text.rstrip("\n").split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "draining"
    assert here.store.only.owner == ""


async def test_a_connection_has_so_many_requests_waiting(here: Stage) -> None:
    host, port = here.gateway.http.split(":")
    one = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    for count, whole in ((MAX_PIPELINED, True), (2000, False)):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(one * (count - 1) + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        try:
            answers = (await reader.read()).count(b"HTTP/1.1 200")
        except ConnectionError:
            answers = 0
        writer.close()
        assert (answers == count) is whole
        assert answers <= MAX_PIPELINED + 1
    async with httpx2.AsyncClient(base_url=here.url) as client:
        assert (await client.get("/livez")).status_code == 200


async def test_who_does_not_read_loses_the_connection(here: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_SECONDS", 0.2)
    host, port = here.gateway.http.split(":")
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect((host, int(port)))
        silent.setblocking(False)
        with suppress(BlockingIOError):
            silent.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * MAX_PIPELINED)
        state = await asyncio.to_thread(_closed, silent)
        assert state == "closed"


async def test_an_unread_stream_is_not_generated_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of about 1 MB, which fits the kernel's buffers on loopback."""
    monkeypatch.setattr(connection, "UNREAD_SECONDS", 0.2)
    script = Script(tokens=tuple(b"a" * 3000))
    body = GOOD | {"stream": True, "logprobs": 20, "max_tokens": 3000}
    async with stage(ScriptedVerifier(script=script, info=facts(context_length=4096))) as here:
        host, port = here.gateway.http.split(":")
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect((host, int(port)))
            silent.sendall(posted(json.dumps(body).encode()))
            await until(lambda: here.verifier.cancelled)
        assert 64 <= sum(len(each.tokens) for each in here.store.only.rounds) < 2000


def _closed(unread: socket.socket) -> str:
    """Write without reading until the peer closes the connection."""
    for _ in range(1000):
        try:
            unread.send(b"\r\n")
        except BlockingIOError:
            pass
        except ConnectionError:
            return "closed"
        time.sleep(0.01)
    return "open"
