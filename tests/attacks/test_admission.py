"""A flood of 2,600 concurrent requests: each is answered or refused by name, and an honest caller is served."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.integration.gateway.flood import TIMEOUT, Answer, attacker
from tests.integration.gateway.replicas import Replica, replicas
from tests.integration.sessions.server import Server, running_server
from tests.support.gateway_fakes import Script, ScriptedVerifier

pytestmark = pytest.mark.e2e

BODY = {"prompt": "Say it", "max_tokens": 4}
FLOOD = [BODY, BODY | {"stream": True}] * 1300


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


async def test_each_of_2600_requests_is_answered_or_told_to_come_back(server: Server) -> None:
    verifier = ScriptedVerifier(script=Script(text="ok", gamma=0))
    async with replicas(server.url, verifier, 1) as (replica,):
        with attacker() as sender:
            flood = asyncio.create_task(sender.flood(replica.gateway.http, FLOOD))
            honest = await honest_while(replica, flood)
            answers: list[Answer] = await flood
        found = Counter((answer.status, answer.code) for answer in answers)
        assert found.keys() <= {(200, ""), (429, "queue_full")}, found
        assert found[200, ""] >= 224, "as many as run at once are answered at least"
        assert all('"stop"' in answer.text for answer in answers if answer.status == 200), "none ends without a finish"
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status == 429)
        assert set(honest) == {200}, "another user's requests are not refused"
        assert (await replica.post()).status_code == 200
        assert (await replica.client.get("/readyz")).status_code == 200


async def honest_while(replica: Replica, flood: "asyncio.Task[list[Answer]]") -> list[int]:
    """Return the statuses of another user's sequential requests during the flood."""
    statuses = []
    while not flood.done() or not statuses:
        body = BODY | {"user": "honest"}
        statuses.append((await replica.client.post("/v1/completions", json=body, timeout=TIMEOUT)).status_code)
        await asyncio.sleep(0.05)
    return statuses
