"""Admission comes before the session store: excess requests are refused, and not as failures of the store."""

import asyncio
import json
from dataclasses import replace

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from gateway.config import AdmissionSettings
from gateway.store.redis_client import connect
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.flood import attacker
from tests.integration.gateway.replicas import LONG, Heard, Replica, replicas
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import Script, ScriptedVerifier, until

SHORT = Script(text="ok", gamma=0)


async def metric(replica: Replica, line: str) -> float:
    """Return the value of a series, named with its labels."""
    page = (await replica.client.get("/metrics")).text
    return float(next(row for row in page.splitlines() if row.startswith(f"{line} ")).rpartition(" ")[2])


async def test_four_hundred_requests_at_once_are_all_answered(server: Server) -> None:
    async with replicas(server.url, ScriptedVerifier(script=SHORT), 1, admission=AdmissionSettings(seconds=60)) as (
        replica,
    ):
        with attacker() as sender:
            answers = await sender.flood(replica.gateway.http, [{"prompt": "Say it", "max_tokens": 4}] * 400)
        assert [(answer.status, answer.code) for answer in answers] == [(200, "")] * 400
        assert {json.loads(answer.text)["choices"][0]["text"] for answer in answers} == {"ok"}
        for kind in ("generations", "calls"):
            assert await metric(replica, f'specdec_gateway_requests_waiting{{kind="{kind}"}}') == 0


async def test_what_is_over_the_queue_gets_429_and_another_user_is_served(server: Server) -> None:
    slow = ScriptedVerifier(script=Script(text="ok", gamma=0, pause=0.2))
    few = AdmissionSettings(running=16, waiting=20, seconds=30)
    async with replicas(server.url, slow, 1, admission=few) as (replica,):
        with attacker() as sender:
            flood = asyncio.create_task(sender.flood(replica.gateway.http, [{"prompt": "x", "user": "loud"}] * 100))
            await until(lambda: len(slow.calls) >= 10)
            assert [(await replica.post(user="quiet")).status_code for _ in range(3)] == [200, 200, 200]
            answers = await flood
        assert {(answer.status, answer.code) for answer in answers} == {(200, ""), (429, "queue_full")}
        refused = [answer for answer in answers if answer.status == 429]
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert "of this user" in refused[0].text
        counted = await metric(replica, 'specdec_gateway_requests_refused_total{kind="generations"}')
        assert counted == len(refused)


async def test_a_long_wait_is_refused_and_a_full_gateway_resumes_generations(
    server: Server,
) -> None:
    few = AdmissionSettings(running=16, seconds=0.2)
    verifier = ScriptedVerifier(script=replace(LONG, pause=0.1))
    async with replicas(server.url, verifier, 1, admission=few) as (replica,):
        heard = Heard()
        taken = [asyncio.create_task(replica.stream(Heard())) for _ in range(8)]
        await replica.stream(heard, enough=2)
        await until(lambda: len(verifier.calls) == 9)  # the user's last place of the sixteen
        full = await replica.post()
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        async with grpc.aio.insecure_channel(replica.gateway.grpc) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await pb_grpc.GenerationServiceStub(channel).Generate(pb.GenerateRequest(text="x"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(refused.value)
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)
        await replica.resume(heard)
        assert heard.done
        await asyncio.gather(*taken)
        assert (await replica.post()).status_code == 200


async def test_a_full_store_is_told_by_name(server: Server) -> None:
    async with replicas(server.url, ScriptedVerifier(script=SHORT), 1) as (replica,), connect(server.url) as client:
        assert (await replica.client.get("/readyz")).status_code == 200
        used = int((await client.info("memory"))["used_memory"])
        await client.config_set("maxmemory", str(round(used / 0.9)))
        try:
            ready = await replica.client.get("/readyz")
            assert ready.status_code == 503
            (line,) = ready.json()["missing"]
            assert line.startswith("the session store is 9")
            assert "full" in line
            answer = await replica.post()
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "session_store_full")
        finally:
            await client.config_set("maxmemory", "0")
        assert (await replica.client.get("/readyz")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/sessions/" + "0" * 32, "/v1/generations/" + "0" * 32 + "-1/events"])
async def test_other_calls_wait_for_one_another_and_not_for_connections(server: Server, path: str) -> None:
    one = AdmissionSettings(calls=1, waiting=40, seconds=30)
    async with replicas(server.url, ScriptedVerifier(script=SHORT), 1, admission=one) as (replica,):
        answers = await asyncio.gather(*(replica.client.get(f"{path}?user=u") for _ in range(60)))
        codes = {answer.json()["error"]["code"] for answer in answers}
        assert codes <= {"session_not_found", "generation_not_found", "queue_full"}
        assert codes != {"queue_full"}
