"""Stored conversations: stable ids, one writer at a time, and each user sees only their own."""

import asyncio

import grpc
import pytest

from gateway.callers.caller import tenant_of
from gateway.store import lua
from gateway.store.redis_client import connect
from gateway.turns.turn import session_id_for
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.replicas import LONG, Heard, Replica, replicas
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import EOS, Script, ScriptedVerifier

ANSWER = [*b"ok", EOS]
GUESSES = (("GET", "/events"), ("DELETE", ""))


@pytest.fixture
def verifier() -> ScriptedVerifier:
    return ScriptedVerifier(script=Script(text="ok", gamma=0))


async def made(replica: Replica, **body: object) -> str:
    answer = await replica.client.post("/v1/sessions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def test_a_turn_continues_the_committed_ids_untouched(pair: list[Replica], verifier: ScriptedVerifier) -> None:
    session = await made(pair[0])
    first = await pair[0].post(session=session, prompt="one")
    second = await pair[1].post(session=session, prompt="two")
    assert first.json()["session"] == {"id": session, "turn": 1}
    assert second.json()["session"] == {"id": session, "turn": 2}
    assert list(verifier.calls[1].tokens) == [*b"one", *ANSWER, *b"two"]
    assert second.json()["usage"]["prompt_tokens"] == 9
    shown = (await pair[0].client.get(f"/v1/sessions/{session}")).json()
    assert (shown["turn"], shown["tokens"], shown["state"]) == (2, 12, "idle")
    assert shown["generation"] == f"{session}-2"


async def test_a_session_goes_on_from_the_best_beam(pair: list[Replica], verifier: ScriptedVerifier) -> None:
    session = await made(pair[0])
    first = await pair[0].post(session=session, prompt="one", use_beam_search=True, beam_width=2)
    assert first.json()["speculation"]["beam_search"]["num_steps"] == len(ANSWER)
    await pair[1].post(session=session, prompt="two")
    assert list(verifier.calls[1].tokens) == [*b"one", *ANSWER, *b"two"]


@pytest.mark.parametrize("gamma", [0, 3])
async def test_the_tokens_of_a_stop_string_do_not_stay_in_the_session(
    gamma: int, pair: list[Replica], verifier: ScriptedVerifier
) -> None:
    session, verifier.script = await made(pair[0]), Script(text="ok STOP and more", gamma=gamma)
    first = (await pair[0].post(session=session, prompt="one", stop=["STOP"], return_token_ids=True)).json()
    assert (first["choices"][0]["text"], first["choices"][0]["stop_reason"]) == ("ok ", "STOP")
    assert first["usage"]["completion_tokens"] == len(first["choices"][0]["token_ids"]) == len("ok STOP")
    await pair[1].post(session=session, prompt="two", stop=["two"])
    await pair[0].post(session=session, prompt="three")
    assert list(verifier.calls[1].tokens) == [*b"oneok two"]
    assert list(verifier.calls[2].tokens) == [*b"oneok two", *b"ok STOP and more", EOS, *b"three"]


async def test_of_two_writers_one_is_told_that_it_came_second(pair: list[Replica]) -> None:
    session = await made(pair[0])
    answers = await asyncio.gather(*(replica.post(session=session, expect_turn=0) for replica in pair))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    late = await pair[0].post(session=session, expect_turn=0)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "session_busy")
    assert (await pair[0].post(session=session, expect_turn=1)).status_code == 200


async def test_a_turn_that_was_broken_off_does_not_block_its_session(server: Server, pair: list[Replica]) -> None:
    session = await made(pair[0])
    async with replicas(server.url, ScriptedVerifier(script=LONG), 1, grace=0.0) as (other,):
        await other.stream(heard := Heard(), enough=3, session=session)
        next_turn = {"session": session, "prompt": "on", "expect_turn": 1}
        while (after := await other.post(**next_turn)).status_code == 409:  # noqa: ASYNC110 - until it is given back
            await asyncio.sleep(0.01)
    assert after.json()["session"] == {"id": session, "turn": 2}
    await pair[1].resume(heard)
    assert heard.done
    assert heard.text == LONG.text[: len(heard.text)] != LONG.text


async def test_a_turn_that_comes_again_attaches_even_after_another(pair: list[Replica]) -> None:
    session, key = await made(pair[0]), {"idempotency-key": "turn"}
    first = await pair[0].post(session=session, headers=key)
    again = await pair[1].post(session=session, headers=key)
    assert first.json()["id"] == again.json()["id"]
    assert (await pair[0].client.get(f"/v1/sessions/{session}")).json()["turn"] == 1


async def test_a_session_that_was_not_made_is_not_found(pair: list[Replica]) -> None:
    for name in ("0" * 32, "nothing", "a{b}c", ""):
        answer = await pair[0].post(session=name)
        assert answer.status_code == (404 if name else 200)


async def test_another_users_session_is_answered_like_one_that_never_was(pair: list[Replica]) -> None:
    session, never = await made(pair[0], user="ann"), "0" * 32
    await pair[0].post(session=session, user="ann")

    async def statuses(name: str) -> list[tuple[int, object]]:
        client = pair[1].client
        answers = [
            await pair[1].post(session=name, user="bob"),
            await pair[1].post(session=name),
            await client.get(f"/v1/sessions/{name}?user=bob"),
            await client.get(f"/v1/sessions/{name}"),
            await client.delete(f"/v1/sessions/{name}?user=bob"),
        ]
        return [(answer.status_code, answer.json()) for answer in answers]

    foreign = await statuses(session)
    assert foreign == await statuses(never)
    assert {status for status, _ in foreign} == {404}
    assert (await pair[1].client.get(f"/v1/sessions/{session}?user=ann")).json()["turn"] == 1


async def test_sessions_are_listed_by_user_newest_first_and_forgotten(pair: list[Replica]) -> None:
    names = [await made(pair[0], user="lister") for _ in range(3)]
    page = (await pair[1].client.get("/v1/sessions?user=lister&limit=2")).json()
    assert [entry["id"] for entry in page["data"]] == [names[2], names[1]]
    assert page["has_more"]
    rest = (await pair[1].client.get(f"/v1/sessions?user=lister&limit=2&after={page['last_id']}")).json()
    assert [entry["id"] for entry in rest["data"]] == [names[0]]
    assert not rest["has_more"]
    assert (await pair[1].client.delete(f"/v1/sessions/{names[1]}?user=lister")).json()["deleted"]
    assert (await pair[1].client.get(f"/v1/sessions/{names[1]}?user=lister")).status_code == 404
    left = (await pair[1].client.get("/v1/sessions?user=lister")).json()
    assert [entry["id"] for entry in left["data"]] == [names[2], names[0]]


async def test_a_session_lives_as_long_as_it_was_asked_to(pair: list[Replica]) -> None:
    session = await made(pair[0], ttl=100)
    assert 90 < (await pair[0].client.get(f"/v1/sessions/{session}")).json()["expires_in"] <= 200
    await pair[0].post(session=session)
    assert 90 < (await pair[0].client.get(f"/v1/sessions/{session}")).json()["expires_in"] <= 100
    for ttl in (0, 10**9):
        assert (await pair[0].client.post("/v1/sessions", json={"ttl": ttl})).status_code == 400


async def test_the_same_key_makes_the_same_session(pair: list[Replica]) -> None:
    key = {"idempotency-key": "make"}
    answers = [await replica.client.post("/v1/sessions", json={"user": "ann"}, headers=key) for replica in pair]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    other = await pair[0].client.post("/v1/sessions", json={"user": "bob"}, headers=key)
    assert other.json()["id"] != answers[0].json()["id"]


async def test_callers_without_a_user_list_no_sessions_and_share_no_keys(pair: list[Replica]) -> None:
    session = await made(pair[0])
    refusals = [
        await pair[0].client.get("/v1/sessions"),
        await pair[1].client.get("/v1/sessions?user="),
        await pair[1].client.post("/v1/sessions", json={}, headers={"idempotency-key": "make"}),
    ]
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refusals} == {(403, "user_required")}
    assert {answer.json()["error"]["param"] for answer in refusals} == {"user"}
    assert (await pair[1].client.get(f"/v1/sessions/{session}")).json()["id"] == session
    async with grpc.aio.insecure_channel(pair[0].gateway.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pb_grpc.SessionServiceStub(channel).ListSessions(pb.ListSessionsRequest())
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_the_name_of_a_keyed_generation_needs_the_stores_secret(server: Server, pair: list[Replica]) -> None:
    key = {"idempotency-key": "guessable"}
    names = {(await replica.post(headers=key)).json()["id"].removeprefix("cmpl-") for replica in pair}
    async with connect(server.url) as client:
        secret = await client.get(lua.SECRET)
    assert secret is not None
    assert names == {f"{session_id_for(secret, tenant_of(''), 'guessable')}-1"}
    for guess in (b"", b"guess", secret[1:]):
        name = f"{session_id_for(guess, tenant_of(''), 'guessable')}-1"
        answers = [await pair[0].client.request(method, f"/v1/generations/{name}{path}") for method, path in GUESSES]
        assert {answer.status_code for answer in answers} == {404}


async def test_grpc_keeps_sessions_and_resumes_generations_too(pair: list[Replica]) -> None:
    async with grpc.aio.insecure_channel(pair[0].gateway.grpc) as channel:
        sessions, generations = pb_grpc.SessionServiceStub(channel), pb_grpc.GenerationServiceStub(channel)
        session = (await sessions.CreateSession(pb.CreateSessionRequest(user="g"))).session
        request = pb.GenerateRequest(text="one", user="g", session=session.id, request_id="r1", expect_turn=0)
        answer = await generations.Generate(request)
        assert (answer.text, answer.session, answer.turn) == ("ok", session.id, 1)
        assert (await generations.Generate(request)).id == answer.id
        resumed = generations.ResumeGeneration(pb.ResumeGenerationRequest(id=answer.id, user="g", received=1))
        events = [event async for event in resumed]
        first, *middle, last = [event.WhichOneof("event") for event in events]
        assert (first, set(middle), last) == ("started", {"round"}, "finished")
        assert [token.id for event in events for token in event.round.tokens] == ANSWER[1:]
        cancel = await generations.CancelGeneration(pb.CancelGenerationRequest(id=answer.id, user="g"))
        assert not cancel.cancelled
        got = (await sessions.GetSession(pb.GetSessionRequest(id=session.id, user="g"))).session
        assert (got.turn, got.tokens, got.generating) == (1, 6, False)
        listed = await sessions.ListSessions(pb.ListSessionsRequest(user="g"))
        assert [entry.id for entry in listed.sessions] == [session.id]
        await sessions.DeleteSession(pb.DeleteSessionRequest(id=session.id, user="g"))
        with pytest.raises(grpc.aio.AioRpcError) as gone:
            await sessions.GetSession(pb.GetSessionRequest(id=session.id, user="g"))
        assert gone.value.code() is grpc.StatusCode.NOT_FOUND
