"""Checks whether a Redis server can store KV blocks: it may lose any of them, and must not slow down sessions."""

from collections.abc import Iterator

from gateway.store.check import cluster_check, version_check
from gateway.store.redis_client import ServerFacts, server_facts
from specdec.errors import ConfigError, SessionStoreDown
from specdec.serving.checks import Check


async def check_block_store(url: str, sessions: ServerFacts | None) -> list[Check]:
    """Return the checks of the server at a URL; `sessions` are the facts of the session store's server."""
    try:
        return list(block_checks(await server_facts(url), sessions))
    except ConfigError as error:
        return [Check.fail("block store", error.message, "set kv.redis_url to a Redis URL, or to nothing")]
    except SessionStoreDown:
        remedy = "start it, or set kv.redis_url to it: until then every block is a miss"
        return [Check.warn("block store", "it does not answer", remedy)]


def block_checks(facts: ServerFacts, sessions: ServerFacts | None) -> Iterator[Check]:
    """Yield the checks. Unlike the session store, a block store evicts when full and keeps nothing on disk."""
    yield version_check("block store", facts)
    yield from cluster_check("block store", facts)
    if sessions is not None and facts.run_id == sessions.run_id:
        detail = "it is the session store: blocks would fill it, evict sessions or slow every commit down"
        yield Check.fail("block store server", detail, "set kv.redis_url to a server of its own")
        return
    yield _eviction(facts)
    if facts.append_only:
        remedy = "set appendonly no: blocks can be computed again, and are not worth the writes"
        yield Check.warn("block store persistence", "appendonly is on", remedy)
    if not facts.is_master:
        yield Check.warn("block store role", "it is a replica", "set kv.redis_url to the master, or to Sentinels")


def _eviction(facts: ServerFacts) -> Check:
    name, policy = "block store eviction", f"maxmemory-policy is {facts.maxmemory_policy}"
    if not facts.maxmemory:
        return Check.warn(name, "maxmemory is not set", "set maxmemory: blocks take what there is")
    if facts.maxmemory_policy == "noeviction":
        return Check.warn(name, policy, "set maxmemory-policy allkeys-lru: once it is full it takes no block at all")
    return Check.ok(name, f"{policy}, maxmemory {facts.maxmemory} bytes")
