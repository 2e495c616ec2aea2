"""API keys in both APIs: access, ownership of sessions, counters, and secrecy of the keys."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from openai import AsyncOpenAI, AuthenticationError, RateLimitError
from structlog.testing import capture_logs

from specdec.cli.app import status_of
from specdec.cli.exit_codes import ExitCode
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.key_files import bearer, line, write
from tests.integration.gateway.replicas import LONG, Heard, Replica, replicas
from tests.integration.sessions.server import Server, running_server
from tests.support.gateway_fakes import Script, ScriptedVerifier, until

SHORT = Script(text="ok", gamma=0)
SLOW = Script(text="abcdefghijklmnopqrst", gamma=0, pause=0.1)
ACME, OTHER = bearer("acme-key"), bearer("other-key")
FRESH = bearer("fresh-key")
"""Key without any usage in the store."""


@asynccontextmanager
async def guarded(
    server: Server, folder: Path, *lines: str, script: Script = SHORT, count: int = 1, **settings: Any
) -> AsyncIterator[list[Replica]]:
    """Run gateways with these keys, by default one of `acme` and one of `other`."""
    path = write(folder, *(lines or (line("acme-key", "acme"), line("other-key", "other"))))
    verifier = ScriptedVerifier(script=script)
    async with replicas(server.url, verifier, count, api_keys=path, redis_url=server.url, **settings) as made:
        yield made


async def eventually(wanted: int, status: Callable[[], Awaitable[int]]) -> None:
    """Wait until `status` returns the wanted status."""
    async with asyncio.timeout(60):
        while await status() != wanted:  # noqa: ASYNC110 - in the gateway
            await asyncio.sleep(0.05)


def told(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_tokens_are_counted_by_the_tenant_of_the_key(server: Server, tmp_path: Path) -> None:
    async with guarded(server, tmp_path) as (replica,):
        for user in ("ann", "ben"):
            assert (await replica.post(user=user, headers=ACME)).status_code == 200
        page = (await replica.client.get("/metrics", headers=ACME)).text
    samples = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    tokens = {name: float(value) for name, _, value in samples}
    for kind in ("prompt", "output"):
        assert (
            tokens[f'specdec_tenant_tokens_total{{kind="{kind}",tenant="acme"}}']
            == tokens[f'specdec_tokens_total{{kind="{kind}"}}']
        )
    assert not any("ann" in name or 'tenant="other"' in name for name in tokens)


async def test_without_a_known_key_nothing_is_served_but_health(server: Server, tmp_path: Path) -> None:
    async with guarded(server, tmp_path) as (replica,):
        client = replica.client
        paths = ["/v1/models", "/v1/sessions", "/metrics", "/openapi.json", "/nothing", "/LIVEZ"]
        for headers in ({}, bearer("acme-kez"), {"authorization": "Basic YWNtZQ=="}, {"x-api-key": "acme-kez"}):
            for path in paths:
                answer = await client.get(path, headers=headers)
                assert told(answer) == (401, "invalid_api_key"), path
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.headers["x-request-id"]
        assert told(await replica.post()) == (401, "invalid_api_key")
        for path in ("/livez", "/livez/", "/readyz", "/"):  # public: the page asks the user for a key
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/v1/models", headers={"x-api-key": "acme-key"})).status_code == 200
        assert (await client.get("/v1/models", headers=ACME)).status_code == 200
        page = (await client.get("/metrics", headers=ACME)).text
        assert "specdec_calls_unauthenticated_total 25.0" in page
        assert "specdec_api_keys 2.0" in page


async def test_over_grpc_a_key_is_metadata(server: Server, tmp_path: Path) -> None:
    async with guarded(server, tmp_path) as (replica,), grpc.aio.insecure_channel(replica.gateway.grpc) as channel:
        generations, models = pb_grpc.GenerationServiceStub(channel), pb_grpc.ModelServiceStub(channel)
        request = pb.GenerateRequest(text="Say it", stop=pb.StopOptions(max_tokens=4))
        for metadata in ((), (("authorization", "Bearer acme-kez"),), (("authorization", "Bearer acme-key"),) * 2):
            for call in (
                generations.Generate(request, metadata=metadata),
                models.ListModels(pb.ListModelsRequest(), metadata=metadata),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert reason(refused.value) == "CREDENTIALS_INVALID"
                assert dict(refused.value.trailing_metadata())["x-request-id"]
        answer = await generations.Generate(request, metadata=tuple(ACME.items()))
        assert answer.text == "ok"
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


def reason(error: grpc.aio.AioRpcError) -> str:
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in rpc_status.from_call(error).details)
    return info.reason


async def test_sessions_and_generations_belong_to_the_tenant_of_the_key(server: Server, tmp_path: Path) -> None:
    lines = (line("acme-key", "acme"), line("acme-new", "acme"), line("other-key", "other"))
    async with guarded(server, tmp_path, *lines) as (replica,):
        client = replica.client
        session = (await client.post("/v1/sessions", json={}, headers=ACME)).json()["id"]
        answer = await replica.post(session=session, headers=ACME)
        name, key = answer.json()["id"], {"idempotency-key": "k"}
        assert (await client.get(f"/v1/sessions/{session}", headers=bearer("acme-new"))).json()["turn"] == 1
        listed = (await client.get("/v1/sessions", headers=ACME)).json()["data"]
        assert [each["id"] for each in listed] == [session], "a tenant needs no user to list its own"
        for user in ("", "acme", "key:acme"):
            query = f"?user={user}"
            for method, path in (
                ("GET", f"/v1/sessions/{session}{query}"),
                ("DELETE", f"/v1/sessions/{session}{query}"),
                ("GET", f"/v1/generations/{name}/events{query}"),
                ("DELETE", f"/v1/generations/{name}{query}"),
            ):
                assert (await client.request(method, path, headers=OTHER)).status_code == 404, path
            assert (await replica.post(session=session, user=user, headers=OTHER)).status_code == 404
            assert (await client.get(f"/v1/sessions{query}", headers=OTHER)).json()["data"] == []
        mine, others = [(await replica.post(headers=key | each)).json()["id"] for each in (ACME, OTHER)]
        assert mine != others, "an idempotency key means nothing in another tenant"
        assert (await replica.post(headers=key | bearer("acme-new"))).json()["id"] == mine


async def test_grpc_and_http_agree_on_whose_session_it_is(server: Server, tmp_path: Path) -> None:
    async with guarded(server, tmp_path) as (replica,), grpc.aio.insecure_channel(replica.gateway.grpc) as channel:
        sessions = pb_grpc.SessionServiceStub(channel)
        made = await sessions.CreateSession(pb.CreateSessionRequest(), metadata=tuple(ACME.items()))
        path = f"/v1/sessions/{made.session.id}"
        answers = [(await replica.client.get(path, headers=headers)).status_code for headers in (ACME, OTHER)]
        assert answers == [200, 404]
        calls = [
            sessions.GetSession(pb.GetSessionRequest(id=made.session.id), metadata=tuple(OTHER.items())) for _ in "ab"
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {error.code() for error in found} == {grpc.StatusCode.NOT_FOUND}


async def test_keys_change_without_a_restart(server: Server, tmp_path: Path) -> None:
    async with guarded(server, tmp_path) as (replica,):
        write(tmp_path, line("acme-new", "acme"))

        async def status(key: str) -> int:
            return (await replica.client.get("/v1/models", headers=bearer(key))).status_code

        await eventually(200, lambda: status("acme-new"))
        assert await status("acme-key") == 401
        write(tmp_path, "acme: nonsense")

        async def is_good() -> bool:
            page = (await replica.client.get("/metrics", headers=bearer("acme-new"))).text
            return "specdec_api_keys_file_good 1.0" in page

        await eventually(False, is_good)
        assert await status("acme-new") == 200


async def test_a_key_over_its_requests_gets_429_at_every_gateway(server: Server, tmp_path: Path) -> None:
    lines = (line("acme-key", "acme", "requests=3"), line("other-key", "other"))
    async with guarded(server, tmp_path, *lines, count=2) as pair, AsyncExitStack() as stack:
        answers = [await pair[index % 2].post(max_tokens=2, headers=ACME) for index in range(3)]
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0"]
        assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"3"}
        for replica in pair:
            refused = await replica.post(headers=ACME)
            assert told(refused) == (429, "rate_limit_exceeded")
            assert 10 < int(refused.headers["retry-after"]) <= 20
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert (await replica.post(headers=OTHER)).status_code == 200
            assert (await replica.client.get("/v1/models", headers=ACME)).status_code == 200
        for key, error in (("acme-key", RateLimitError), ("nobody", AuthenticationError)):
            client = AsyncOpenAI(base_url=f"http://{pair[0].gateway.http}/v1", api_key=key, max_retries=0)
            stack.push_async_callback(client.close)
            with pytest.raises(error):
                await client.completions.create(model="bytes", prompt="x", max_tokens=2)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(pair[0].gateway.grpc))
        call = pb_grpc.GenerationServiceStub(channel).Generate(
            pb.GenerateRequest(text="x"), metadata=tuple(ACME.items())
        )
        with pytest.raises(grpc.aio.AioRpcError) as exhausted:
            await call
        assert exhausted.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason(exhausted.value) == "RATE_LIMITED"
        details = rpc_status.from_call(exhausted.value).details
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details)
        page = (await pair[0].client.get("/metrics", headers=OTHER)).text
        assert 'specdec_requests_limited_total{limit="requests",tenant="acme"} 3.0' in page


async def test_a_stream_its_resumes_and_all_its_choices_are_one_request(server: Server, tmp_path: Path) -> None:
    lines = (line("fresh-key", "acme", "requests=4 tokens=10000"),)
    async with guarded(server, tmp_path, *lines, script=LONG) as (replica,):
        heard = Heard()
        await replica.stream(heard, enough=4, headers=FRESH | {"idempotency-key": "once"})
        for _ in range(2):
            await listen(replica, heard, enough=len(heard.text) + 2)
        await listen(replica, heard)
        assert heard.text == LONG.text
        again = Heard()
        await replica.stream(again, headers=FRESH | {"idempotency-key": "once"})
        assert again.text == LONG.text
        whole = await replica.post(n=3, max_tokens=4, headers=FRESH)
        assert whole.headers["x-ratelimit-remaining-requests"] == "2", "a stream, and one request of three choices"
        assert whole.json()["usage"]["completion_tokens"] == 12


async def listen(replica: Replica, heard: Heard, enough: int = 10**6) -> None:
    path, headers = f"/v1/generations/{heard.generation}/events", FRESH | {"last-event-id": heard.last_id}
    async with replica.client.stream("GET", path, headers=headers) as events:
        assert events.status_code == 200
        async for text in events.aiter_lines():
            heard.hear(text)
            if len(heard.text) >= enough:
                return


async def test_a_place_is_free_when_the_last_byte_has_come(server: Server, tmp_path: Path) -> None:
    async with guarded(server, tmp_path, line("acme-key", "acme", "concurrency=1"), script=SLOW) as (replica,):

        async def status() -> int:
            return (await replica.post(headers=ACME)).status_code

        running = Heard()
        listening = asyncio.create_task(replica.stream(running, headers=ACME))
        await until(lambda: running.text)
        assert told(await replica.post(headers=ACME)) == (429, "rate_limit_exceeded")
        await listening
        assert running.done
        for _ in range(3):
            heard = Heard()
            await replica.stream(heard, headers=ACME)
            assert heard.done
        gone = Heard()
        await replica.stream(gone, enough=2, headers=ACME)
        await eventually(200, status)


async def test_a_class_above_that_of_the_key_is_403(server: Server, tmp_path: Path) -> None:
    lines = (line("acme-key", "acme"), line("other-key", "other", "priority=priority"))
    async with (
        guarded(server, tmp_path, *lines) as (replica,),
        grpc.aio.insecure_channel(replica.gateway.grpc) as channel,
    ):
        refused = await replica.post(service_tier="priority", headers=ACME)
        assert told(refused) == (403, "priority_not_allowed")
        assert refused.json()["error"]["param"] == "service_tier"
        assert (await replica.post(service_tier="priority", headers=OTHER)).status_code == 200
        request = pb.GenerateRequest(text="x", priority="PRIORITY_CLASS_PRIORITY")
        with pytest.raises(grpc.aio.AioRpcError) as denied:
            await pb_grpc.GenerationServiceStub(channel).Generate(request, metadata=tuple(ACME.items()))
        assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_the_command_line_sends_a_key(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async with guarded(server, tmp_path) as (replica,):
        command = ["run", "Say it", "--max-tokens", "4", "--json", "--address", replica.gateway.grpc]
        assert await asyncio.to_thread(status_of, command) == ExitCode.UNAUTHENTICATED
        assert await asyncio.to_thread(status_of, [*command, "--api-key", "two words"]) == ExitCode.USAGE
        monkeypatch.setenv("SPECDEC_API_KEY", "acme-key")
        assert await asyncio.to_thread(status_of, command) == ExitCode.OK
        assert '"text": "ok"' in capfd.readouterr().out


async def test_with_the_store_away_a_limited_key_is_refused(tmp_path: Path) -> None:
    with running_server() as server:
        async with guarded(server, tmp_path, line("acme-key", "acme", "requests=5")) as (replica,):
            assert (await replica.post(headers=ACME)).status_code == 200
            await asyncio.to_thread(server.kill)
            answer = await replica.post(headers=ACME)
            assert told(answer) == (503, "session_store_down")
            assert answer.headers["retry-after"] == "1"


async def test_no_key_is_ever_logged_or_stored(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        async with guarded(server, tmp_path, line("acme-key", "acme", "requests=2")) as (replica,):
            for headers in (ACME, bearer("guessed-key"), ACME, ACME):
                await replica.post(headers=headers)
    told_to_logs = json.dumps(logs, default=str) + caplog.text
    assert "acme-key" not in told_to_logs
    assert "guessed-key" not in told_to_logs
