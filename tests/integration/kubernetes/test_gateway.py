"""A gateway that finds its verifiers by EndpointSlices: clients notice no rollout of the verifiers."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from gateway.app import running
from gateway.config import FailoverSettings, GatewaySettings, TokenizerSettings
from gateway.discovery.cluster import ClusterSettings
from gateway.discovery.sources import GatewayDiscoverySettings
from specdec.protos.verifier.v1 import verifier_pb2_grpc as pb_grpc
from specdec.serving.addresses import split_address
from specdec.serving.rpc.server import start_grpc
from tests.fake_kubernetes import FakeKubernetes
from tests.fake_kubernetes.slices import SERVICE, SLICES, pod, slice_of
from tests.fake_kubernetes.store import Object
from tests.integration.gateway.scripted_servicer import ScriptedServicer
from tests.support.gateway_fakes import ByteTokenizer, Script, ScriptedVerifier, until
from tests.support.memory_sessions import MemorySessionStore

LONG = Script(text="All that is said, is said once. " * 4, pause=0.02)


class House:
    """Two verifiers, a gateway that does not know them yet, and the API server that lists them."""

    def __init__(self, api: FakeKubernetes, client: AsyncOpenAI, verifiers: list[ScriptedVerifier]) -> None:
        self.api = api
        self.client = client
        self.verifiers = verifiers

    def says(self, number: int, **conditions: bool) -> None:
        """Write the slice of one verifier."""
        host, port = split_address(self.verifiers[number].address)
        item: Object = pod(number, **conditions) | {"addresses": [host]}
        made = slice_of(f"s{number}", item, port=port)
        known = {each["metadata"]["name"] for each in self.api.store.collection(SLICES)[0]}
        if f"s{number}" in known:
            self.api.store.update(SLICES, f"s{number}", lambda _: made)
        else:
            self.api.store.create(SLICES, made)

    async def states(self) -> dict[str, str]:
        """Return the gateway's view of each verifier, by the verifier's number."""
        answer = json.loads(await asyncio.to_thread(_read, str(self.client.base_url.join("/readyz"))))
        numbers = {verifier.address: str(number) for number, verifier in enumerate(self.verifiers)}
        return {numbers[address]: state for address, state in answer["verifiers"].items()}

    async def text(self) -> str:
        """Request one completion and return its text."""
        answer = await self.client.completions.create(model="bytes", prompt="x", max_tokens=200)
        return answer.choices[0].text


@pytest.fixture
async def house(api: FakeKubernetes, cluster: ClusterSettings) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        verifiers = [ScriptedVerifier(script=LONG) for _ in range(2)]
        for verifier in verifiers:
            servicer = ScriptedServicer(verifier)
            server = await start_grpc(
                "127.0.0.1:0",
                lambda it, servicer=servicer: pb_grpc.add_VerifierServiceServicer_to_server(servicer, it),
                (),
            )
            stack.push_async_callback(server.stop, 0)
            verifier.address = server.address
        settings = GatewaySettings(
            model=TokenizerSettings(path=Path("models/bytes")),
            http="127.0.0.1:0",
            address="127.0.0.1:0",
            discovery=GatewayDiscoverySettings(kind="kubernetes", names=(SERVICE,)),
            cluster=cluster,
            failover=FailoverSettings(seconds=20),
            poll=0.05,
        )
        made = House(api, AsyncOpenAI(api_key="none", base_url="http://unknown", max_retries=0), verifiers)
        stack.push_async_callback(made.client.close)
        made.says(0)
        tokenizers = {settings.model.served_name: ByteTokenizer()}
        gateway = await stack.enter_async_context(running(settings, tokenizers, MemorySessionStore()))
        made.client.base_url = f"http://{gateway.http}/v1/"  # type: ignore[assignment]
        yield made


async def test_it_serves_as_soon_as_the_first_list_is_in(house: House) -> None:
    assert await house.text() == LONG.text


async def test_when_all_pods_are_gone_it_is_not_ready_and_says_why(house: House) -> None:
    house.api.store.delete(SLICES, "s0")
    await until_states(house, {})
    answer = json.loads(await asyncio.to_thread(_read, str(house.client.base_url.join("/readyz"))))
    assert answer["missing"] == ["no verifier is known"]
    house.says(0)
    assert await until_ready(house) == LONG.text


async def test_a_terminating_pod_finishes_its_generation_and_gets_no_new_one(
    house: House,
) -> None:
    first = asyncio.create_task(house.text())
    await until(lambda: house.verifiers[0].calls)
    house.says(1)
    house.says(0, ready=False, serving=True, terminating=True)
    await until_states(house, {"0": "draining", "1": "ready"})
    assert await house.text() == LONG.text
    assert await first == LONG.text
    assert [len(verifier.calls) for verifier in house.verifiers] == [1, 1]


async def test_a_generation_on_a_pod_gone_from_the_slices_is_finished_there(house: House) -> None:
    first = asyncio.create_task(house.text())
    await until(lambda: house.verifiers[0].calls)
    house.says(1)
    house.api.store.delete(SLICES, "s0")
    await until_states(house, {"1": "ready"})
    assert await first == LONG.text
    assert house.verifiers[0].cancelled == 0


async def test_with_the_api_away_a_lost_verifier_is_still_found_out(house: House) -> None:
    house.says(1)
    await until_states(house, {"0": "ready", "1": "ready"})
    house.api.down = True
    house.api.drop_watches()
    house.verifiers[0].draining = True
    house.verifiers[0].reachable = False
    async with asyncio.timeout(20):
        while not house.verifiers[1].calls:
            assert await house.text() == LONG.text


async def until_ready(house: House) -> str:
    await until_states(house, {"0": "ready"})
    return await house.text()


async def until_states(house: House, wanted: dict[str, str]) -> None:
    async with asyncio.timeout(20):
        while await house.states() != wanted:  # noqa: ASYNC110 - what is waited for is the gateway's word
            await asyncio.sleep(0.02)


def _read(url: str) -> bytes:
    """Return the response body, also that of a refusal."""
    try:
        answer = urllib.request.urlopen(url, timeout=60)
    except urllib.error.HTTPError as refusal:
        answer = refusal
    with answer:
        body: bytes = answer.read()
        return body
