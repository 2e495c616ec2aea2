"""Generations outlive the connections and the gateways through which they were started."""

import asyncio
from typing import Any

import pytest

from gateway.config import DrainSettings
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.values import RoundCommit, SessionState
from gateway.tasks import cancel_and_wait
from gateway.turns.turn import note_of
from specdec.rules.speculation import Origin
from specdec.wire.generation import Round
from tests.contracts.session_store import commit
from tests.integration.gateway.replicas import ASKED, LONG, Heard, Replica, replicas
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import ScriptedVerifier, until

TEXT = LONG.text


async def test_a_client_goes_on_at_the_same_gateway(pair: list[Replica], verifier: ScriptedVerifier) -> None:
    heard = Heard()
    await pair[0].stream(heard, enough=5)
    await pair[0].resume(heard)
    assert heard.text == TEXT
    assert heard.done
    assert len(verifier.calls) == 1


async def test_another_gateway_tells_what_the_owner_commits(pair: list[Replica], verifier: ScriptedVerifier) -> None:
    first, second = Heard(), Heard()
    listening = asyncio.create_task(pair[0].stream(first))
    await until(lambda: len(first.text) > 3)
    second.last_id = f"{first.generation}.0"
    await pair[1].resume(second)
    await listening
    assert first.text == second.text == TEXT
    assert first.chunks[-1] == second.chunks[-1]
    assert len(verifier.calls) == 1


async def test_a_drained_gateway_hands_over_at_once(server: Server, verifier: ScriptedVerifier) -> None:
    async with replicas(server.url, verifier, drain=DrainSettings(limit=0.0), lease=3600.0) as pair:
        heard = Heard()
        listening = asyncio.create_task(pair[0].stream(heard))
        await until(lambda: len(heard.text) > 3)
        await pair[0].gateway.drain()
        await listening
        assert heard.error is not None
        assert heard.error["code"] == "draining"
        await pair[1].resume(heard)
    assert heard.text == TEXT
    assert len(verifier.calls) == 2
    assert verifier.calls[1].epoch > verifier.calls[0].epoch


async def test_a_reader_of_a_former_owner_gets_what_the_new_owner_commits(
    server: Server, verifier: ScriptedVerifier, pair: list[Replica]
) -> None:
    heard = Heard()
    listening = asyncio.create_task(pair[0].stream(heard))
    await until(lambda: len(heard.text) > 3)
    thief, sid = RedisSessionStore.at(server.url), heard.generation.partition("-")[0]
    lease = await server.take_over(thief, sid, "thief")
    for base, token in enumerate(b"!?", start=lease.n):
        stolen = Round(base_len=base, tokens=(token,), origins=(Origin.PLAIN,))
        await commit(thief, RoundCommit(sid, lease.epoch, base, stolen.tokens, note=note_of(stolen)))
    await thief.release(sid, lease.epoch)
    await thief.close()
    await listening
    at = lease.n - len(ASKED["prompt"])
    assert heard.text == f"{TEXT[:at]}!?{TEXT[at + 2 :]}"
    assert heard.done


async def test_another_gateway_finishes_a_silent_one_s_turn_by_itself(server: Server, pair: list[Replica]) -> None:
    heard, dead = Heard(), RedisSessionStore.at(server.url, StorePolicy(lease=0.1))
    listening = asyncio.create_task(pair[0].stream(heard))
    await until(lambda: len(heard.text) > 3)
    sid = heard.generation.partition("-")[0]
    await server.take_over(dead, sid, "dead")
    listening.cancel()
    async with asyncio.timeout(20):
        while (await dead.get(sid, "default")).state is SessionState.GENERATING:  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0.02)
    await dead.close()
    await pair[1].resume(heard)
    assert heard.text == TEXT


async def test_another_gateway_finishes_a_turn_that_was_opened_and_never_owned(
    pair: list[Replica], verifier: ScriptedVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = asyncio.Event()

    async def die(*_: object, **__: object) -> None:
        died.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(pair[0].store, "acquire", die)
    key = {"idempotency-key": "unowned"}
    asking = asyncio.create_task(pair[0].post(headers=key, max_tokens=20))
    await died.wait()
    await cancel_and_wait(asking)
    await until(lambda: verifier.calls)
    assert (await pair[1].post(headers=key, max_tokens=20)).json()["choices"][0]["text"] == TEXT[:20]
    assert len(verifier.calls) == 1


async def test_an_ended_generation_is_told_again_with_the_same_counts(pair: list[Replica]) -> None:
    first, again = Heard(), Heard()
    await pair[0].stream(first)
    again.last_id = f"{first.generation}.0"
    await pair[1].resume(again)
    assert again.text == TEXT
    assert again.chunks[-1] == first.chunks[-1]
    tail = Heard(last_id=first.last_id)
    await pair[1].resume(tail)
    assert (tail.text, tail.done) == ("", True)


async def test_without_readers_it_stops_after_the_grace_and_can_be_resumed(
    server: Server, verifier: ScriptedVerifier
) -> None:
    async with replicas(server.url, verifier, grace=0.05) as pair:
        heard = Heard()
        await pair[0].stream(heard, enough=3)
        await until(lambda: verifier.cancelled == 1)
        await pair[1].resume(heard)
    assert heard.text == TEXT


async def test_a_request_that_comes_again_attaches(pair: list[Replica], verifier: ScriptedVerifier) -> None:
    key = {"idempotency-key": "attach"}
    answers = await asyncio.gather(pair[0].post(headers=key, max_tokens=20), pair[1].post(headers=key, max_tokens=20))
    later = await pair[0].post(headers=key, max_tokens=20)
    bodies = [answer.json() for answer in (*answers, later)]
    assert [body["choices"][0]["text"] for body in bodies] == [TEXT[:20]] * 3
    assert len({body["id"] for body in bodies}) == 1
    assert len(verifier.calls) == 1


async def test_a_key_with_another_request_is_refused_by_name(pair: list[Replica]) -> None:
    key = {"idempotency-key": "other"}
    await pair[0].post(headers=key, max_tokens=3)
    answer = await pair[1].post(headers=key, max_tokens=4)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "idempotency_key_reused")


async def test_a_key_is_its_users_own(pair: list[Replica]) -> None:
    key = {"idempotency-key": "mine"}
    ids = {(await pair[0].post(headers=key, max_tokens=3, user=user)).json()["id"] for user in ("a", "b")}
    assert len(ids) == 2


@pytest.mark.parametrize("name", ["nothing", "0" * 32 + "-1", "0" * 31 + "{}" + "-1"])
async def test_a_generation_that_never_was_is_not_found(pair: list[Replica], name: str) -> None:
    for method, path in (("GET", f"/v1/generations/{name}/events"), ("DELETE", f"/v1/generations/{name}")):
        answer = await pair[0].client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "generation_not_found")


async def test_another_users_generation_is_answered_like_one_that_never_was(pair: list[Replica]) -> None:
    heard = Heard()
    await pair[0].stream(heard, user="ann")
    never = f"{'0' * 32}-1"
    for user in ("", "bob"):
        for suffix, method in (("/events", "GET"), ("", "DELETE")):
            answers = [
                await pair[1].client.request(method, f"/v1/generations/{name}{suffix}?user={user}")
                for name in (heard.generation, never)
            ]
            assert [answer.status_code for answer in answers] == [404, 404]
            assert answers[0].json() == answers[1].json()
    again = Heard(last_id=f"{heard.generation}.0")
    await pair[1].resume(again, user="ann")
    assert again.text == TEXT


async def test_a_cursor_ahead_of_the_log_conflicts_and_a_foreign_one_is_wrong(pair: list[Replica]) -> None:
    heard = Heard()
    await pair[0].stream(heard)
    path = f"/v1/generations/{heard.generation}/events"
    ahead = await pair[1].client.get(path, headers={"last-event-id": f"{heard.generation}.999"})
    assert (ahead.status_code, ahead.json()["error"]["code"]) == (409, "log_rolled_back")
    foreign = await pair[1].client.get(path, headers={"last-event-id": "x.1"})
    assert foreign.status_code == 400


async def test_events_of_an_old_turn_are_gone(pair: list[Replica]) -> None:
    session = (await pair[0].client.post("/v1/sessions", json={})).json()["id"]
    for _ in range(3):
        assert (await pair[0].post(session=session, max_tokens=2)).status_code == 200
    statuses = [
        (await pair[0].client.get(f"/v1/generations/{session}-{turn}/events")).status_code for turn in (1, 2, 3)
    ]
    assert statuses == [410, 200, 200]


async def test_a_stream_pauses_while_the_store_is_away_and_then_goes_on(
    server: Server, verifier: ScriptedVerifier, pair: list[Replica]
) -> None:
    heard = Heard()
    listening = asyncio.create_task(pair[0].stream(heard))
    await until(lambda: len(heard.text) > 3)
    server.kill()
    try:
        held: dict[str, Any] = (await pair[1].post()).json()
        assert held["error"]["code"] == "session_store_down"
        assert (await pair[1].client.post("/v1/sessions", json={})).status_code == 503
        paused = len(heard.chunks)
        await asyncio.sleep(0.2)
        assert len(heard.chunks) <= paused + 1
    finally:
        server.start()
    await listening
    assert heard.text == TEXT
    assert heard.done
