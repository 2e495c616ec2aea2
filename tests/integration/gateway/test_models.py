"""Several models on one gateway: a request goes to the verifiers of the named model, with its tokenizer."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from gateway.app import running
from gateway.config import GatewaySettings, ModelRoute, TokenizerSettings
from gateway.tools.formats import FORMATS
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.scripted_servicer import serve_scripted
from tests.support.gateway_fakes import ByteTokenizer, Script, ScriptedVerifier, facts
from tests.support.memory_sessions import MemorySessionStore

QUIET = "org/quiet"
LOUD = "org/loud"
UNREACHABLE = "127.0.0.1:1"


class LoudTokenizer(ByteTokenizer):
    """Another byte vocabulary, in which token 97 is an A."""

    fingerprint = "loud bytes"
    tool_format = FORMATS["pythonic"]

    def piece(self, token: int, first: bool) -> bytes:
        return super().piece(token, first).upper()

    def token_bytes(self, token: int) -> bytes:
        return super().token_bytes(token).upper()


@dataclass(frozen=True, slots=True)
class House:
    """A gateway of two models, and the verifier of each."""

    quiet: ScriptedVerifier
    loud: ScriptedVerifier
    client: httpx2.AsyncClient
    grpc: str

    async def post(self, path: str = "/v1/completions", **body: Any) -> httpx2.Response:
        return await self.client.post(path, json={"prompt": "Say it", "max_tokens": 20} | body)


@asynccontextmanager
async def gateway(
    store: MemorySessionStore, addresses: tuple[str, str], models: tuple[str, str] = (QUIET, LOUD)
) -> AsyncIterator[tuple[httpx2.AsyncClient, str]]:
    """Run a gateway of two models with verifiers at those addresses."""
    tokenizers = {QUIET: ByteTokenizer(), LOUD: LoudTokenizer()}
    first, second = models
    settings = GatewaySettings(
        model=TokenizerSettings(path=Path("models/first"), name=first),
        models={second: ModelRoute(path=Path("models/second"), verifiers=(addresses[1],))},
        verifiers=(addresses[0],),
        http="127.0.0.1:0",
        address="127.0.0.1:0",
        poll=0.05,
        grace=0.0,
        store_patience=0.0,
    )
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(running(settings, {name: tokenizers[name] for name in models}, store))
        client = httpx2.AsyncClient(base_url=f"http://{made.http}", timeout=30)
        yield await stack.enter_async_context(client), made.grpc


@pytest.fixture
def store() -> MemorySessionStore:
    return MemorySessionStore()


@pytest.fixture
def quiet() -> ScriptedVerifier:
    return ScriptedVerifier(script=Script("a quiet answer"))


@pytest.fixture
def loud() -> ScriptedVerifier:
    described = facts(tokenizer_hash="loud bytes", system_fingerprint="fp_loud", context_length=100)
    return ScriptedVerifier(script=Script("another one"), info=described)


@pytest.fixture
async def addresses(quiet: ScriptedVerifier, loud: ScriptedVerifier) -> AsyncIterator[tuple[str, str]]:
    async with AsyncExitStack() as stack:
        yield await serve_scripted(quiet, stack), await serve_scripted(loud, stack)


@pytest.fixture
async def house(
    store: MemorySessionStore, addresses: tuple[str, str], quiet: ScriptedVerifier, loud: ScriptedVerifier
) -> AsyncIterator[House]:
    async with gateway(store, addresses) as (client, address):
        yield House(quiet, loud, client, address)


async def test_a_request_is_answered_by_the_model_it_names(house: House) -> None:
    for model, text, fingerprint in ((QUIET, "a quiet answer", "fp_test"), (LOUD, "ANOTHER ONE", "fp_loud")):
        answer = (await house.post(model=model, logprobs=0)).json()
        assert (answer["model"], answer["choices"][0]["text"]) == (model, text)
        assert answer["system_fingerprint"] == fingerprint
        assert answer["choices"][0]["logprobs"]["tokens"][0] == text[0]
    assert (len(house.quiet.calls), len(house.loud.calls)) == (1, 1)


async def test_a_chat_and_its_stream_go_the_same_way(house: House) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "model": LOUD, "stream": True}
    answer = await house.client.post("/v1/chat/completions", json=chat)
    assert "ANO" in answer.text
    assert not house.quiet.calls


async def test_a_request_without_a_model_is_for_the_first(house: House) -> None:
    assert (await house.post()).json()["model"] == QUIET


async def test_an_unknown_model_is_not_found(house: House) -> None:
    for answer in (await house.post(model="org/none"), await house.client.get("/v1/models/org/none")):
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'org/quiet' and 'org/loud' are" in error["message"]


async def test_all_models_are_listed_with_their_own_limits(house: House) -> None:
    listed = (await house.client.get("/v1/models")).json()["data"]
    assert [(each["id"], each["max_model_len"]) for each in listed] == [(QUIET, 256), (LOUD, 100)]
    assert (await house.client.get(f"/v1/models/{LOUD}")).json()["tokenizer_hash"] == "loud bytes"
    async with grpc.aio.insecure_channel(house.grpc) as channel:
        over_grpc = await pb_grpc.ModelServiceStub(channel).ListModels(pb.ListModelsRequest())
    assert [each.id for each in over_grpc.models] == [QUIET, LOUD]


async def test_text_and_tokens_are_those_of_the_model(house: House) -> None:
    tokens = {"tokens": list(b"abc")}
    for model, text in ((QUIET, "abc"), (LOUD, "ABC")):
        shown = await house.client.post("/v1/detokenize", json=tokens | {"model": model})
        assert shown.json()["prompt"] == text
    counted = await house.client.post("/v1/tokenize", json={"prompt": "abc", "model": LOUD})
    assert counted.json()["max_model_len"] == 100


async def test_a_prompt_is_measured_by_the_context_of_its_model(house: House) -> None:
    prompt = "x" * 150
    assert (await house.post(model=QUIET, prompt=prompt)).status_code == 200
    assert (await house.post(model=LOUD, prompt=prompt)).json()["error"]["code"] == "context_length_exceeded"


async def test_a_session_keeps_its_model_though_no_request_names_it(house: House) -> None:
    session = (await house.client.post("/v1/sessions", json={"model": LOUD})).json()
    assert session["model"] == LOUD
    for _ in range(2):
        assert (await house.post(session=session["id"])).json()["choices"][0]["text"] == "ANOTHER ONE"
    assert (await house.client.get(f"/v1/sessions/{session['id']}")).json()["model"] == LOUD
    assert not house.quiet.calls


async def test_tools_are_called_in_the_words_of_the_session_s_model(house: House) -> None:
    house.quiet.script = house.loud.script = Script("[time()]")
    tools: list[Any] = [{"type": "function", "function": {"name": "TIME"}}]
    session = (await house.client.post("/v1/sessions", json={"model": LOUD})).json()["id"]
    asked = {"messages": [{"role": "user", "content": "?"}], "tools": tools, "session": session}
    answer = (await house.client.post("/v1/chat/completions", json=asked)).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "TIME"
    forced = await house.client.post("/v1/chat/completions", json=asked | {"tool_choice": "required"})
    assert forced.status_code == 200
    grammar = house.loud.calls[-1].sampling.grammar
    assert grammar is not None
    assert "TIME(" in grammar.text


async def test_a_session_of_another_model_is_refused(house: House) -> None:
    for own, other in ((LOUD, QUIET), (QUIET, LOUD)):
        session = (await house.client.post("/v1/sessions", json={"model": own})).json()["id"]
        refused = await house.post(session=session, model=other)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        assert f"belongs to model {own!r}" in refused.json()["error"]["message"]


async def test_a_session_of_the_only_model_goes_on_where_more_are_served(
    store: MemorySessionStore, house: House
) -> None:
    """A gateway of one model writes only the fingerprint, so gateways before and after an upgrade understand it."""
    session = (await house.client.post("/v1/sessions", json={})).json()["id"]
    assert store.only.fingerprint == "fp_test"
    assert (await house.post(session=session)).json()["model"] == QUIET


async def test_a_generation_is_read_again_from_another_gateway_in_its_own_words(
    store: MemorySessionStore, addresses: tuple[str, str], house: House
) -> None:
    first = await house.post(model=LOUD, stream=True, stream_options={"resumable": True})
    name = first.text.partition("id: ")[2].partition(".")[0]
    async with gateway(store, (addresses[1], addresses[0]), (LOUD, QUIET)) as (client, _):
        again = await client.get(f"/v1/generations/{name}/events")
    assert again.status_code == 200, again.text
    assert "ANO" in again.text
    assert "ano" not in again.text
    assert f'"model":"{LOUD}"' in again.text


async def test_one_model_without_verifiers_takes_nothing_from_the_other(
    store: MemorySessionStore, addresses: tuple[str, str]
) -> None:
    async with gateway(store, (addresses[0], UNREACHABLE)) as (client, _):
        assert (await client.get("/readyz")).status_code == 200
        assert [each["id"] for each in (await client.get("/v1/models")).json()["data"]] == [QUIET]
        served = await client.post("/v1/completions", json={"prompt": "p", "model": QUIET})
        assert served.status_code == 200
        assert (await client.get(f"/v1/models/{LOUD}")).status_code == 503
    async with gateway(store, (UNREACHABLE, UNREACHABLE)) as (client, _):
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/v1/models")).status_code == 503


async def test_a_verifier_with_the_tokenizer_of_the_other_model_is_refused(
    store: MemorySessionStore, addresses: tuple[str, str], loud: ScriptedVerifier
) -> None:
    loud.facts = replace(loud.facts, tokenizer_hash=ByteTokenizer.fingerprint)
    async with gateway(store, addresses) as (client, _):
        states = (await client.get("/readyz")).json()["verifiers"]
        assert states[addresses[0]] == "ready"
        assert states[addresses[1]].startswith("refused")


async def test_metrics_tell_the_verifiers_of_each_model(house: House) -> None:
    lines = (await house.client.get("/metrics")).text.splitlines()
    up = [line for line in lines if line.startswith("specdec_verifier_up{")]
    assert sorted(line.partition('model="')[2].partition('"')[0] for line in up) == [LOUD, QUIET]
