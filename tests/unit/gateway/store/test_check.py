"""Findings about a session store's server, and the URLs that lead to one."""

from dataclasses import replace

import pytest
from redis.asyncio.sentinel import SentinelConnectionPool

from gateway.store.check import store_checks
from gateway.store.redis_client import ServerFacts, connect
from specdec.errors import ConfigError

GOOD = ServerFacts("valkey", "9.1.2", "noeviction", True, used=10, maxmemory=100, replicas=1)


def findings(facts: ServerFacts, replicas: int = 1) -> dict[str, str]:
    return {line.name: line.status for line in store_checks(facts, replicas) if line.status != "ok"}


def test_a_good_server_is_good() -> None:
    assert findings(GOOD) == {}
    assert findings(replace(GOOD, replicas=0), replicas=0) == {}


@pytest.mark.parametrize(
    ("facts", "name", "status"),
    [
        (replace(GOOD, name="redis", version="6.0.9"), "session store", "fail"),
        (replace(GOOD, name="redis", version="6.2.14"), "session store", "warn"),
        (replace(GOOD, maxmemory_policy="allkeys-lru"), "session store eviction", "warn"),
        (replace(GOOD, append_only=False), "session store persistence", "warn"),
        (replace(GOOD, fsync="no"), "session store persistence", "warn"),
        (replace(GOOD, log_is_written=False), "session store persistence", "warn"),
        (replace(GOOD, used=85), "session store memory", "warn"),
        (replace(GOOD, is_master=False), "session store role", "fail"),
        (replace(GOOD, is_cluster=True), "session store cluster", "fail"),
    ],
)
def test_what_is_wrong_is_named(facts: ServerFacts, name: str, status: str) -> None:
    assert findings(facts) == {name: status}


@pytest.mark.parametrize("asked", [0, 2])
def test_too_few_replicas_are_named_and_those_that_nobody_waits_for(asked: int) -> None:
    assert findings(GOOD, replicas=asked) == {"session store replicas": "warn"}


@pytest.mark.parametrize("version", ["6.2.20", "7.0.15", "8.2.2"])
def test_redis_of_a_known_good_version_is_good(version: str) -> None:
    assert findings(replace(GOOD, name="redis", version=version)) == {}


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a:1,b,[::1]:3/main",
        "rediss+sentinel://user:p%40ss@a/main/2?sentinel_password=x&ssl_check_hostname=false",
    ],
)
async def test_sentinel_urls_are_understood(url: str) -> None:
    client = connect(url)
    assert isinstance(client.connection_pool, SentinelConnectionPool)
    await client.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:secret@a",
        "redis+sentinel://:secret@a:x/main",
        "redis+sentinel:///main",
        "redis+sentinel://a/main?x=1",
        "redis://:secret@a?ssl_ca_certs=x",
        "other+sentinel://a/b",
    ],
)
def test_a_wrong_sentinel_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        connect(url)
    assert "secret" not in refused.value.message
