"""Adapters of verifiers over HTTP and gRPC: listed as models, chosen by `model`, and kept by sessions and failover."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from gateway.app import running
from gateway.callers.caller import ANONYMOUS, cache_domain, tenant_of
from gateway.config import GatewaySettings, TokenizerSettings
from specdec.errors import NoVerifier
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.wire.generation import Adapter
from tests.integration.gateway.scripted_servicer import serve_scripted
from tests.support.gateway_fakes import ByteTokenizer, Script, ScriptedVerifier, facts
from tests.support.memory_sessions import MemorySessionStore

ADAPTERS = (Adapter("org/sql", "fp_sql"), Adapter("org/law", "fp_law"))


@dataclass(frozen=True, slots=True)
class House:
    """A gateway with a verifier without adapters and two with the same."""

    plain: ScriptedVerifier
    adapted: tuple[ScriptedVerifier, ScriptedVerifier]
    client: httpx2.AsyncClient
    grpc: str

    async def post(self, **body: Any) -> httpx2.Response:
        return await self.client.post("/v1/completions", json={"prompt": "Say it", "max_tokens": 20} | body)

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Adapter, cache domain and verifier of each call, the verifier as `plain` or `adapted`."""
        found = [(each, "plain") for each in self.plain.calls]
        found += [(each, "adapted") for verifier in self.adapted for each in verifier.calls]
        return [(each.adapter, each.cache_salt, where) for each, where in found]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    plain = ScriptedVerifier(script=Script("an answer"))
    adapted = tuple(ScriptedVerifier(script=Script("an answer"), info=facts(adapters=ADAPTERS)) for _ in range(2))
    async with AsyncExitStack() as stack:
        settings = GatewaySettings(
            model=TokenizerSettings(path=Path("models/base"), name="org/base"),
            verifiers=tuple([await serve_scripted(each, stack) for each in (plain, *adapted)]),
            http="127.0.0.1:0",
            address="127.0.0.1:0",
            grace=0.0,
        )
        store = MemorySessionStore()
        made = await stack.enter_async_context(running(settings, {"org/base": ByteTokenizer()}, store))
        client = await stack.enter_async_context(httpx2.AsyncClient(base_url=f"http://{made.http}", timeout=30))
        yield House(plain, (adapted[0], adapted[1]), client, made.grpc)


async def test_adapters_are_listed_with_their_model(house: House) -> None:
    listed = (await house.client.get("/v1/models")).json()["data"]
    assert [(each["id"], each["parent"], each["system_fingerprint"]) for each in listed] == [
        ("org/base", None, "fp_test"), ("org/sql", "org/base", "fp_sql"), ("org/law", "org/base", "fp_law"),
    ]  # fmt: skip
    assert (await house.client.get("/v1/models/org/law")).json()["parent"] == "org/base"
    async with grpc.aio.insecure_channel(house.grpc) as channel:
        models = await pb_grpc.ModelServiceStub(channel).ListModels(pb.ListModelsRequest())
    assert [(each.id, each.parent) for each in models.models] == [(each["id"], each["parent"] or "") for each in listed]
    schema = (await house.client.get("/openapi.json")).text
    assert "org/sql" in schema


async def test_the_model_of_a_request_chooses_the_adapter(house: House) -> None:
    for number in range(8):
        answer = (await house.post(model="org/sql", seed=number)).json()
        assert (answer["model"], answer["system_fingerprint"]) == ("org/sql", "fp_sql")
    assert set(house.calls) == {("org/sql", cache_domain(ANONYMOUS, "", "fp_sql"), "adapted")}


async def test_one_prompt_has_a_domain_for_each_adapter(house: House) -> None:
    for model in ("org/base", "org/sql", "org/law"):
        await house.post(model=model, cache_salt="s", user="ann")
    assert {(adapter, domain) for adapter, domain, _ in house.calls} == {
        ("", cache_domain(tenant_of("ann"), "s")),
        ("org/sql", cache_domain(tenant_of("ann"), "s", "fp_sql")),
        ("org/law", cache_domain(tenant_of("ann"), "s", "fp_law")),
    }


async def test_grpc_chooses_it_likewise(house: House) -> None:
    request = pb.GenerateRequest(text="Say it", model="org/law")
    async with grpc.aio.insecure_channel(house.grpc) as channel:
        stub = pb_grpc.GenerationServiceStub(channel)
        await stub.Generate(request)
        request.model = "org/tax"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(request)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert [adapter for adapter, _, _ in house.calls] == ["org/law"]


async def test_an_unknown_adapter_is_an_unknown_model(house: House) -> None:
    refused = await house.post(model="org/tax")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_session_keeps_its_adapter(house: House) -> None:
    session = (await house.client.post("/v1/sessions", json={"model": "org/sql"})).json()
    assert session["model"] == "org/sql"
    for _ in range(2):
        assert (await house.post(session=session["id"])).json()["model"] == "org/sql"
    assert {adapter for adapter, _, _ in house.calls} == {"org/sql"}
    for other in ("org/law", "org/base"):
        refused = await house.post(session=session["id"], model=other)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")


async def test_a_generation_goes_on_with_its_adapter_where_the_adapter_is(house: House) -> None:
    for verifier in (house.plain, *house.adapted):
        verifier.failures = [(1, NoVerifier("lost"))]
    answer = (await house.post(model="org/sql")).json()
    assert answer["choices"][0]["text"] == "an answer"
    assert [(adapter, where) for adapter, _, where in house.calls] == [("org/sql", "adapted")] * 3
    assert {len(each.calls) for each in house.adapted} == {1, 2}


async def test_without_a_verifier_of_the_adapter_no_other_answers(house: House) -> None:
    for verifier in house.adapted:
        verifier.facts = facts()
    while (refused := await house.post(model="org/sql")).status_code == 200:  # until both were probed again
        pass
    assert refused.status_code == 404
    assert not house.plain.calls


async def test_drafts_of_an_adapter_count_for_its_model(house: House) -> None:
    await house.post(model="org/sql")
    lines = (await house.client.get("/metrics")).text.splitlines()
    assert [line for line in lines if line.startswith("vllm:spec_decode_num_drafts_total") and " 0.0" not in line]
    assert not [line for line in lines if "org/sql" in line]
