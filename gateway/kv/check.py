"""Checks whether a Redis server is fit to store KV blocks: it may lose any of them, and must not slow sessions down."""

import asyncio
from collections.abc import Iterator

from gateway.store.check import version_line
from gateway.store.redis_client import ServerFacts, connect, server_facts
from specdec.errors import ConfigError, SessionStoreDown
from specdec.serving.checks import Line

TIMEOUT = 5.0


async def check_block_store(url: str, sessions: ServerFacts | None) -> list[Line]:
    """The findings about the server at a URL; `sessions` is what is known of the session store's server."""
    try:
        client = connect(url)
    except ConfigError as error:
        return [Line("block store", "fail", error.message, "set kv.redis_url to a Redis URL, or to nothing")]
    try:
        async with asyncio.timeout(TIMEOUT):
            return list(block_lines(await server_facts(client), sessions))
    except (SessionStoreDown, TimeoutError):
        remedy = "start it, or set kv.redis_url to it: until then every block is a miss"
        return [Line("block store", "warn", "it does not answer", remedy)]
    finally:
        await client.aclose()


def block_lines(facts: ServerFacts, sessions: ServerFacts | None) -> Iterator[Line]:
    """The findings; a block store evicts when it is full and keeps nothing on disk, unlike the session store."""
    yield version_line("block store", facts)
    if sessions is not None and facts.run_id == sessions.run_id:
        detail = "it is the session store: blocks would fill it, evict sessions or slow every commit down"
        yield Line("block store server", "fail", detail, "set kv.redis_url to a server of its own")
        return
    yield _eviction(facts)
    if facts.append_only:
        remedy = "set appendonly no: blocks can be computed again, and are not worth the writes"
        yield Line("block store persistence", "warn", "appendonly is on", remedy)
    if not facts.is_master:
        yield Line("block store role", "warn", "it is a replica", "set kv.redis_url to the master, or to Sentinels")


def _eviction(facts: ServerFacts) -> Line:
    name, policy = "block store eviction", f"maxmemory-policy is {facts.maxmemory_policy}"
    if not facts.maxmemory:
        return Line(name, "warn", "maxmemory is not set", "set maxmemory: blocks take what there is")
    if facts.maxmemory_policy == "noeviction":
        return Line(name, "warn", policy, "set maxmemory-policy allkeys-lru: once it is full it takes no block at all")
    return Line(name, "ok", f"{policy}, maxmemory {facts.maxmemory} bytes")
