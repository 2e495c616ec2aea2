"""Guessed names: sessions and generations of another user look like ones that never existed, for any name tried."""

import hashlib
import string
from collections.abc import AsyncIterator, Iterator

import grpc
import httpx2
import pytest
import pytest_asyncio

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.attacks.attacked_gateway import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

NEVER = "0" * 32
"""A session that never existed."""
KEY = {"idempotency-key": "order-1"}
OTHERS = ["bob", ""]
"""Another user, and a caller without a user name."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(target: Target) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://{target.http}", timeout=30) as made:
        yield made


async def session_of_ann(client: httpx2.AsyncClient) -> str:
    """Create a session with one finished turn."""
    session = str((await client.post("/v1/sessions", json={"user": "ann"})).json()["id"])
    body = {"prompt": "x", "max_tokens": 2, "user": "ann", "session": session}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    return session


async def tried(client: httpx2.AsyncClient, session: str, user: str) -> list[tuple[int, str]]:
    """Return the answers to everything that a caller can try with a session's name. The name is removed from them."""
    generation = f"/v1/generations/{session}-1"
    body = {"prompt": "x", "max_tokens": 2, "user": user, "session": session}
    answers = [
        await client.get(f"/v1/sessions/{session}", params={"user": user}),
        await client.delete(f"/v1/sessions/{session}", params={"user": user}),
        await client.get(f"{generation}/events", params={"user": user}),
        await client.delete(generation, params={"user": user}),
        await client.post("/v1/completions", json={key: value for key, value in body.items() if value}),
    ]
    return [(answer.status_code, answer.text.replace(session, "NAME")) for answer in answers]


@pytest.mark.parametrize("user", OTHERS)
async def test_a_known_name_is_nothing_to_who_is_not_its_user(client: httpx2.AsyncClient, user: str) -> None:
    session = await session_of_ann(client)
    foreign = await tried(client, session, user)
    assert {status for status, _ in foreign} == {404}
    assert foreign == await tried(client, NEVER, user), "nothing tells it from a name that never was"
    mine = await client.get(f"/v1/sessions/{session}", params={"user": "ann"})
    assert (mine.status_code, mine.json()["turn"]) == (200, 1)
    assert (await client.get(f"/v1/generations/{session}-1/events", params={"user": "ann"})).status_code == 200


async def test_nobody_lists_what_is_not_theirs(client: httpx2.AsyncClient, target: Target) -> None:
    session = await session_of_ann(client)
    for url in ("/v1/sessions", "/v1/sessions?user="):
        refused = await client.get(url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "user_required")
    assert session not in (await client.get("/v1/sessions?user=bob")).text
    assert session in (await client.get("/v1/sessions?user=ann")).text
    async with grpc.aio.insecure_channel(target.grpc) as channel:
        stub = pb_grpc.SessionServiceStub(channel)
        for call, code in (
            (stub.ListSessions(pb.ListSessionsRequest()), grpc.StatusCode.PERMISSION_DENIED),
            (stub.GetSession(pb.GetSessionRequest(id=session, user="bob")), grpc.StatusCode.NOT_FOUND),
            (stub.GetSession(pb.GetSessionRequest(id=session)), grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call
            assert refusal.value.code() is code


def neighbours(name: str) -> Iterator[str]:
    """Return names that differ from a real one in one digit."""
    digits = string.hexdigits[:16]
    for at, digit in enumerate(name):
        yield f"{name[:at]}{digits[(digits.index(digit) + 1) % 16]}{name[at + 1 :]}"


def hashes(user: str, key: str) -> Iterator[str]:
    """Return names that a gateway without a secret would derive from public information."""
    for text in (key, user + key, f"{user}:{key}", f"{user}\0{key}", f"{user}/{key}"):
        for function in (hashlib.md5, hashlib.sha1, hashlib.sha256):
            yield function(text.encode()).hexdigest()[:32]


async def test_names_near_a_real_one_and_hashes_of_its_key_are_nothing(client: httpx2.AsyncClient) -> None:
    body = {"prompt": "x", "max_tokens": 2}
    name = (await client.post("/v1/completions", json=body, headers=KEY)).json()["id"].removeprefix("cmpl-")
    session, _, turn = name.rpartition("-")
    assert (await client.get(f"/v1/generations/{name}/events")).status_code == 200
    guesses = [f"{guess}-{turn}" for guess in (*neighbours(session), *hashes("", KEY["idempotency-key"]))]
    guesses += [f"{session}-{number}" for number in (0, 2, -1)] + [session, session[:16], "*", "..", "%00"]
    for guess in guesses:
        for method, path in (("GET", "/events"), ("DELETE", "")):
            answer = await client.request(method, f"/v1/generations/{guess}{path}")
            assert answer.status_code in (404, 405), (guess, answer.text)


async def test_a_guessed_key_shows_nothing_of_the_request_that_used_it(client: httpx2.AsyncClient) -> None:
    secret = {"prompt": "a secret", "max_tokens": 2}
    headers = {"idempotency-key": "order-2"}
    name = (await client.post("/v1/completions", json=secret, headers=headers)).json()["id"]
    other = await client.post("/v1/completions", json={"prompt": "?", "max_tokens": 2}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert name.removeprefix("cmpl-") not in other.text
    theirs = await client.post("/v1/completions", json=secret | {"user": "bob"}, headers=headers)
    assert theirs.json()["id"] != name
