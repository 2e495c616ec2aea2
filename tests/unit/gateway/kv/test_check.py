"""Findings about a server for blocks, which needs the opposite settings of one for sessions."""

from dataclasses import replace

import pytest

from gateway.kv.check import block_checks
from gateway.store.redis_client import ServerFacts

GOOD = ServerFacts("valkey", "9.1.2", "allkeys-lru", False, maxmemory=2**30, run_id="blocks")
SESSIONS = ServerFacts("valkey", "9.1.2", "noeviction", True, run_id="sessions")


def findings(facts: ServerFacts) -> dict[str, str]:
    return {line.name: line.status for line in block_checks(facts, SESSIONS) if line.status != "ok"}


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "volatile-ttl"])
def test_a_server_that_makes_room_by_itself_is_good(policy: str) -> None:
    assert findings(replace(GOOD, maxmemory_policy=policy)) == {}


@pytest.mark.parametrize(
    ("facts", "name", "status"),
    [
        (replace(GOOD, name="redis", version="6.0.9"), "block store", "fail"),
        (replace(GOOD, maxmemory_policy="noeviction"), "block store eviction", "warn"),
        (replace(GOOD, maxmemory=0), "block store eviction", "warn"),
        (replace(GOOD, append_only=True), "block store persistence", "warn"),
        (replace(GOOD, is_master=False), "block store role", "warn"),
        (replace(GOOD, is_cluster=True), "block store cluster", "fail"),
        (replace(GOOD, run_id="sessions"), "block store server", "fail"),
    ],
)
def test_what_is_wrong_is_named(facts: ServerFacts, name: str, status: str) -> None:
    assert findings(facts) == {name: status}
