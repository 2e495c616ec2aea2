"""A generation can be cancelled through any gateway, whichever gateway runs it."""

import asyncio

from gateway.callers.caller import tenant_of
from gateway.turns.turn import session_id_for
from tests.integration.gateway.replicas import LONG, Heard, Replica, replicas
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import Script, ScriptedVerifier, until

TEXT = LONG.text


async def test_a_cancelled_generation_ends_for_everyone(pair: list[Replica]) -> None:
    heard = Heard()
    listening = asyncio.create_task(pair[0].stream(heard))
    await until(lambda: len(heard.text) > 3)
    path = f"/v1/generations/{heard.generation}"
    assert (await pair[1].client.delete(path)).json()["cancelled"] is True
    await listening
    assert heard.done
    assert TEXT.startswith(heard.text)
    assert heard.text != TEXT
    assert (await pair[1].client.delete(path)).json()["cancelled"] is False


async def test_a_cancel_at_another_gateway_waits_for_no_round_and_no_lease(server: Server) -> None:
    silent = ScriptedVerifier(script=Script(pause=3600.0))
    async with replicas(server.url, silent, lease=3600.0) as pair:
        asking = asyncio.create_task(pair[0].post(headers={"idempotency-key": "prompt"}))
        await until(lambda: silent.calls)
        name = f"{session_id_for(await pair[0].store.secret(), tenant_of(''), 'prompt')}-1"
        assert (await pair[1].client.delete(f"/v1/generations/{name}")).json()["cancelled"]
        (choice,) = (await asking).json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        await until(lambda: silent.cancelled == 1)


async def test_a_paused_generation_is_cancelled_where_it_stands(
    server: Server,
    verifier: ScriptedVerifier,
) -> None:
    async with replicas(server.url, verifier, grace=0.0) as pair:
        heard = Heard()
        await pair[0].stream(heard, enough=3)
        await until(lambda: verifier.cancelled == 1)
        assert (await pair[1].client.delete(f"/v1/generations/{heard.generation}")).json()["cancelled"]
        await pair[1].resume(heard)
    assert heard.done
    assert TEXT.startswith(heard.text)
