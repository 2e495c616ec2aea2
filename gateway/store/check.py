"""Checks whether a Redis or Valkey server can hold sessions, at the gateway's start and in `specdec doctor`."""

from collections.abc import Iterator

from gateway.store.redis_client import ServerFacts
from gateway.store.redis_memory import FULL
from specdec.serving.checks import Check
from specdec.serving.redis_version import SAFE, version_parts

NEEDED = (6, 2, 0)
"""Oldest supported version; older servers lack commands that the scripts use."""


def store_checks(facts: ServerFacts, replicas: int) -> Iterator[Check]:
    """Yield the checks of a server; `replicas` replicas must acknowledge each round."""
    yield version_check("session store", facts)
    yield from cluster_check("session store", facts)
    yield _eviction(facts)
    yield _persistence(facts)
    if facts.maxmemory and facts.used >= FULL * facts.maxmemory:
        found = f"{facts.used / facts.maxmemory:.0%} of maxmemory is used, and new turns are refused from {FULL:.0%} on"
        yield Check.warn("session store memory", found, "give it more memory, or sessions a shorter session_ttl")
    if not facts.is_master:
        yield Check.fail("session store role", "it is a replica", "set redis_url to the master, or to Sentinels")
    elif facts.replicas < replicas:
        found = f"{facts.replicas} replicas are connected, and store_replicas asks for {replicas}"
        yield Check.warn("session store replicas", found, "connect more replicas: until then no round is committed")
    elif facts.replicas and not replicas:
        found = f"{facts.replicas} replicas are connected, and store_replicas is 0: a failover may lose what was shown"
        yield Check.warn("session store replicas", found, "set store_replicas to 1 or more")


def version_check(name: str, facts: ServerFacts) -> Check:
    """Check the server's version."""
    found = f"{facts.name} {facts.version}"
    parts = version_parts(facts.version)
    if facts.name == "redis" and parts < SAFE:
        remedy = f"update it to {'.'.join(map(str, SAFE))} or newer"
        return Check.fail(name, found, remedy) if parts < NEEDED else Check.warn(name, found, remedy)
    return Check.ok(name, found)


def cluster_check(name: str, facts: ServerFacts) -> Iterator[Check]:
    """Refuse a Redis Cluster node: it holds only some of the keys, and the scripts use keys of several nodes."""
    if facts.is_cluster:
        remedy = "use one master, with Sentinels for failover"
        yield Check.fail(f"{name} cluster", "Redis Cluster is not supported (cluster_enabled:1)", remedy)


def _eviction(facts: ServerFacts) -> Check:
    found = f"maxmemory-policy is {facts.maxmemory_policy}"
    if facts.maxmemory_policy == "noeviction":
        return Check.ok("session store eviction", found)
    remedy = "set maxmemory-policy noeviction: any other may drop sessions that are running"
    return Check.warn("session store eviction", found, remedy)


def _persistence(facts: ServerFacts) -> Check:
    name = "session store persistence"
    if not facts.append_only:
        remedy = "set appendonly yes: without it, sessions are gone when the server restarts"
        return Check.warn(name, "appendonly is off", remedy)
    if not facts.log_is_written:
        return Check.warn(name, "the last write of its log failed", "see to the server's disk")
    if facts.fsync == "no":
        remedy = "set appendfsync everysec, or always: what a power cut may cost has no bound without it"
        return Check.warn(name, "appendonly is on and appendfsync is no", remedy)
    return Check.ok(name, f"appendonly is on, appendfsync {f'is {facts.fsync}' if facts.fsync else 'is not told'}")
