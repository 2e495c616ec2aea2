"""Whether a server is fit to hold sessions: the same questions at start and in `specdec doctor`."""

from collections.abc import Iterator

from gateway.store.redis_client import ServerFacts
from gateway.store.redis_memory import FULL
from specdec.serving.checks import Line

NEEDED = (6, 2, 0)
"""Older servers lack commands the scripts use."""
SAFE = (6, 2, 20)
"""Older servers can be made to run code through Lua (CVE-2025-49844)."""


def store_lines(facts: ServerFacts, replicas: int) -> Iterator[Line]:
    """What is right and wrong with a server, when that many of its replicas must acknowledge a round."""
    yield version_line("session store", facts)
    yield _eviction(facts)
    yield _persistence(facts)
    if facts.maxmemory and facts.used >= FULL * facts.maxmemory:
        found = f"{facts.used / facts.maxmemory:.0%} of maxmemory is used, and new turns are refused from {FULL:.0%} on"
        yield Line("session store memory", "warn", found, "give it more memory, or sessions a shorter session_ttl")
    if not facts.is_master:
        yield Line("session store role", "fail", "it is a replica", "set redis_url to the master, or to Sentinels")
    elif facts.replicas < replicas:
        found = f"{facts.replicas} replicas are connected, and store_replicas asks for {replicas}"
        yield Line("session store replicas", "warn", found, "connect more replicas: until then no round is committed")
    elif facts.replicas and not replicas:
        found = f"{facts.replicas} replicas are connected, and store_replicas is 0: a failover may lose what was shown"
        yield Line("session store replicas", "warn", found, "set store_replicas to 1 or more")


def version_line(name: str, facts: ServerFacts) -> Line:
    """Whether a server is new enough."""
    found = f"{facts.name} {facts.version}"
    parts = tuple(int(part) for part in facts.version.split(".")[:3] if part.isdecimal())
    if facts.name == "redis" and parts < SAFE:
        return Line(name, "fail" if parts < NEEDED else "warn", found, "update it to 6.2.20 or newer")
    return Line(name, "ok", found)


def _eviction(facts: ServerFacts) -> Line:
    found = f"maxmemory-policy is {facts.maxmemory_policy}"
    if facts.maxmemory_policy == "noeviction":
        return Line("session store eviction", "ok", found)
    remedy = "set maxmemory-policy noeviction: any other may drop sessions that are running"
    return Line("session store eviction", "warn", found, remedy)


def _persistence(facts: ServerFacts) -> Line:
    name = "session store persistence"
    if not facts.append_only:
        remedy = "set appendonly yes: without it, sessions are gone when the server restarts"
        return Line(name, "warn", "appendonly is off", remedy)
    if not facts.log_is_written:
        return Line(name, "warn", "the last write of its log failed", "see to the server's disk")
    if facts.fsync == "no":
        remedy = "set appendfsync everysec, or always: what a power cut may cost has no bound without it"
        return Line(name, "warn", "appendonly is on and appendfsync is no", remedy)
    return Line(name, "ok", f"appendonly is on, appendfsync {f'is {facts.fsync}' if facts.fsync else 'is not told'}")
