"""Callers that fill the session store's memory or disk are refused by name, and no token already shown is lost."""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from redis.asyncio import Redis

from gateway.store.redis_client import connect
from specdec.cli.local import valkey
from tests.integration.gateway.replicas import LONG, Heard, Replica, replicas
from tests.integration.sessions.server import Server, running_server
from tests.support.gateway_fakes import ScriptedVerifier, facts

pytestmark = pytest.mark.e2e

SLOW = replace(LONG, pause=0.5)
"""An answer of 26 tokens that takes longer than filling the store."""
FAST = replace(LONG, pause=0.0, gamma=8)
"""The answer of SLOW without pauses, for a gateway that takes over if a lease ends while the store is unavailable."""
FACTS = facts(context_length=8192)
PROMPT = "x" * 3000
ROOM = 4 * 2**20
"""Bytes of memory that the callers may fill."""
NO_DISK = "the session store cannot write to its disk, which is full or fails, and takes no new work"
TTL = 15.0
"""Seconds for which a session is kept, more than a busy machine needs to fill the store."""
MOST = 2000
"""Number of requests after which a store that is not full is considered unlimited."""


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a separate server for each test, in a folder whose path is short enough for a socket file."""
    with running_server() as running:
        yield running


async def is_taken(replica: Replica) -> bool:
    """Whether the gateway accepts a single request."""
    return (await replica.post(prompt=PROMPT, user="loud")).status_code == 200


async def filled(replica: Replica) -> Counter[tuple[int, str]]:
    """Send requests until the store refuses them, and return the number of answers by status and code.

    The server's buffers for concurrent callers also count as its memory, so the store is full only when it refuses a
    single request.
    """
    found: Counter[tuple[int, str]] = Counter()
    taken = True
    while found.total() < MOST and taken:
        answers = await asyncio.gather(*(replica.post(prompt=PROMPT, user="loud") for _ in range(16)))
        found.update((each.status_code, each.json().get("error", {}).get("code", "")) for each in answers)
        taken = any(each.status_code == 200 for each in answers) or await is_taken(replica)
    return found


async def test_callers_that_fill_its_memory_are_refused_until_that_expires(server: Server) -> None:
    fast, slow = ScriptedVerifier(script=FAST, info=FACTS), ScriptedVerifier(script=SLOW)
    async with (
        replicas(server.url, slow, 1) as (other,),
        replicas(server.url, fast, 1, session_ttl=TTL) as (replica,),
        connect(server.url) as client,
    ):
        heard = Heard()
        running = asyncio.create_task(other.stream(heard))
        used = int((await client.info("memory"))["used_memory"])
        await client.config_set("maxmemory", str(used + ROOM))
        found = await filled(replica)
        assert found.keys() == {(200, ""), (503, "session_store_full")}, found
        assert (await replica.client.get("/readyz")).status_code == 503
        await running
        assert heard.text == SLOW.text, "what ran goes on, and is stored"
        async with asyncio.timeout(10 * TTL):
            while (await replica.post(user="honest")).status_code != 200:  # noqa: ASYNC110 - until keys expire
                await asyncio.sleep(0.5)
        assert (await replica.client.get("/readyz")).status_code == 200
        assert int((await client.info("stats"))["evicted_keys"]) == 0


async def end_of_disk(client: Redis) -> Callable[[], object]:
    """Limit the growth of the server's files, as on a nearly full disk, and return a function that lifts the limit."""
    pid = int((await client.info("server"))["process_id"])
    written = int((await client.info("persistence"))["aof_current_size"])
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (written + 2**18, hard))
    return partial(resource.prlimit, pid, resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_is_told_and_what_runs_waits_for_room(server: Server) -> None:
    """A server that may lose a second of writes keeps running with a full disk and refuses to write."""
    fast, slow = ScriptedVerifier(script=FAST, info=FACTS), ScriptedVerifier(script=SLOW)
    async with (
        replicas(server.url, slow, 1, store_patience=120.0) as (other,),
        replicas(server.url, fast, 1, store_patience=1.0) as (replica,),
        connect(server.url) as client,
    ):
        await client.config_set("appendfsync", "everysec")
        heard = Heard()
        running = asyncio.create_task(other.stream(heard))
        more_room = await end_of_disk(client)
        found = await filled(replica)
        assert found.keys() <= {(200, ""), (503, "session_store_full")}, found
        assert found[503, "session_store_full"]
        answer = await replica.client.get("/readyz")
        assert (answer.status_code, answer.json()["missing"]) == (503, [NO_DISK])
        more_room()
        await running
        assert heard.text == SLOW.text, "what ran has waited, and is stored"
        async with asyncio.timeout(60):
            while (await replica.client.get("/readyz")).status_code != 200:  # noqa: ASYNC110 - until it writes again
                await asyncio.sleep(0.1)
        assert (await replica.post(user="honest")).status_code == 200


async def test_a_full_disk_loses_nothing_that_was_shown(server: Server) -> None:
    """The server ends when it cannot write its log. A limit on its file size simulates the disk."""
    fast, slow = ScriptedVerifier(script=FAST, info=FACTS), ScriptedVerifier(script=SLOW)
    async with (
        replicas(server.url, slow, 1) as (other,),
        replicas(server.url, fast, 1, store_patience=1.0) as (replica,),
    ):
        heard = Heard()
        running = asyncio.create_task(other.stream(heard))
        async with connect(server.url) as client:
            await end_of_disk(client)
        found = await filled(replica)
        assert found.keys() <= {(200, ""), (503, "session_store_down")}, found
        assert not valkey.answers(server.url)
        assert (await replica.client.get("/readyz")).status_code == 503
        shown = len(heard.text)
        server.start()
        await running
        assert shown < len(heard.text)
        assert heard.text == SLOW.text, "each token once, with those from before and after the full disk"
        assert (await replica.post(user="honest")).status_code == 200
