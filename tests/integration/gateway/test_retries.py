"""A client's automatic retry of a request generates nothing twice."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.integration.gateway.replicas import Replica
from tests.support.gateway_fakes import EOS, Script, ScriptedVerifier

ANSWER = [*b"ok", EOS]


@pytest.fixture
def verifier() -> ScriptedVerifier:
    return ScriptedVerifier(script=Script(text="ok", gamma=0))


async def made(replica: Replica) -> str:
    return str((await replica.client.post("/v1/sessions", json={})).json()["id"])


def attempt(count: int) -> dict[str, str]:
    return {"x-stainless-retry-count": str(count)}


def prompts(verifier: ScriptedVerifier) -> Sequence[Sequence[int]]:
    return [list(call.tokens) for call in verifier.calls]


@pytest.mark.parametrize("expected", [{}, {"expect_turn": 0}])
async def test_a_repeated_turn_is_the_turn_that_was_begun(
    pair: list[Replica], verifier: ScriptedVerifier, expected: dict[str, int]
) -> None:
    session = await made(pair[0])
    first = await pair[0].post(session=session, prompt="one", headers=attempt(0), **expected)
    again = await pair[1].post(session=session, prompt="one", headers=attempt(1), **expected)
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["choices"] == again.json()["choices"]
    assert prompts(verifier) == [[*b"one"]]


async def test_the_same_words_in_a_later_turn_are_a_turn_of_their_own(
    pair: list[Replica], verifier: ScriptedVerifier
) -> None:
    session = await made(pair[0])
    for replica in pair:
        assert (await replica.post(session=session, prompt="on", headers=attempt(0))).status_code == 200
    assert prompts(verifier) == [[*b"on"], [*b"on", *ANSWER, *b"on"]]


async def test_a_repetition_whose_first_attempt_never_came_is_a_turn(
    pair: list[Replica], verifier: ScriptedVerifier
) -> None:
    session = await made(pair[0])
    await pair[0].post(session=session, prompt="one", headers=attempt(0))
    await pair[0].post(session=session, prompt="two", headers=attempt(2))
    assert prompts(verifier) == [[*b"one"], [*b"one", *ANSWER, *b"two"]]


async def test_the_same_request_while_its_turn_runs_joins_it(pair: list[Replica], verifier: ScriptedVerifier) -> None:
    verifier.script = Script(text="hello", gamma=0, pause=0.1)
    session = await made(pair[0])
    running = asyncio.create_task(pair[0].post(session=session, prompt="one"))
    while not verifier.calls:  # noqa: ASYNC110 - until the turn runs
        await asyncio.sleep(0.01)
    joined = await pair[1].post(session=session, prompt="one")
    other = await pair[1].post(session=session, prompt="two", headers=attempt(1))
    assert (await running).json()["id"] == joined.json()["id"]
    assert other.json()["session"]["turn"] == 2


async def test_a_conflict_that_no_retry_mends_says_so(pair: list[Replica]) -> None:
    session = await made(pair[0])
    refused = await pair[0].post(session=session, expect_turn=7)
    assert (refused.status_code, refused.headers.get("x-should-retry")) == (409, "false")
