"""Several choices of one request are resumed together, each from its reader's position."""

import asyncio

import pytest

from gateway.config import DrainSettings
from tests.integration.gateway.replicas import LONG, Heard, Replica, replicas
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import ScriptedVerifier, until

TEXT = LONG.text
ALL = {0: TEXT, 1: TEXT, 2: TEXT}


def positions(heard: Heard) -> list[int]:
    return [int(each) for each in heard.last_id.split(".")[1:]]


async def test_every_event_says_how_much_of_each_choice_there_was(pair: list[Replica]) -> None:
    heard = Heard()
    await pair[0].stream(heard, n=3, return_token_ids=True)
    assert heard.texts == ALL
    tokens = [
        sum(len(c.get("token_ids") or ()) for e in heard.chunks for c in e["choices"] if c["index"] == i) for i in ALL
    ]
    assert positions(heard) == tokens


@pytest.mark.parametrize("enough", [1, 10, 60, 78])
async def test_another_gateway_goes_on_with_each_choice(
    pair: list[Replica],
    verifier: ScriptedVerifier,
    enough: int,
) -> None:
    heard = Heard()
    await pair[0].stream(heard, enough=enough, n=3)
    assert not heard.done
    await pair[1].resume(heard)
    assert (heard.texts, heard.done) == (ALL, True)
    assert len(verifier.calls) == 3


async def test_all_choices_of_a_drained_gateway_go_on_elsewhere(
    server: Server,
    verifier: ScriptedVerifier,
) -> None:
    async with replicas(server.url, verifier, drain=DrainSettings(limit=0.0), lease=3600.0) as pair:
        heard = Heard()
        listening = asyncio.create_task(pair[0].stream(heard, n=3))
        await until(lambda: len(heard.text) > 9)
        await pair[0].gateway.drain()
        await listening
        assert heard.error is not None
        await pair[1].resume(heard)
    assert heard.texts == ALL
    assert len(verifier.calls) == 6


async def test_under_one_key_choices_run_once_and_another_number_is_refused(
    pair: list[Replica],
    verifier: ScriptedVerifier,
) -> None:
    key, heard = {"idempotency-key": "several"}, Heard()
    answers = [await replica.post(headers=key, max_tokens=3, n=2) for replica in pair]
    await pair[0].stream(heard, headers=key, max_tokens=3, n=2)
    assert [[choice["text"] for choice in answer.json()["choices"]] for answer in answers] == [[TEXT[:3]] * 2] * 2
    assert len(verifier.calls) == 2
    assert heard.texts == {0: TEXT[:3], 1: TEXT[:3]}
    for n in (1, 3):
        refused = (await pair[1].post(headers=key, max_tokens=3, n=n)).json()
        assert refused["error"]["code"] == "idempotency_key_reused"


async def test_a_cancel_ends_every_choice(pair: list[Replica]) -> None:
    heard = Heard()
    listening = asyncio.create_task(pair[0].stream(heard, n=3))
    await until(lambda: len(heard.text) > 9)
    assert (await pair[1].client.delete(f"/v1/generations/{heard.generation}")).json()["cancelled"] is True
    await listening
    assert heard.done
    assert all(TEXT.startswith(text) and text != TEXT for text in heard.texts.values())


async def test_a_cursor_of_other_choices_is_a_mistake_and_one_ahead_a_conflict(
    pair: list[Replica],
) -> None:
    heard = Heard()
    await pair[0].stream(heard, n=2)
    path = f"/v1/generations/{heard.generation}/events"
    for cursor, status in (("1", 400), ("1.1.1", 400), ("1.999", 409), ("999.1", 409)):
        answer = await pair[1].client.get(path, headers={"last-event-id": f"{heard.generation}.{cursor}"})
        assert answer.status_code == status
    assert (await pair[1].client.get(f"{path}?received=3")).status_code == 400
