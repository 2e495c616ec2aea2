"""The doctor distinguishes a server suited to blocks from one suited to sessions."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.check import check
from gateway.config import GatewaySettings, KvSettings, TokenizerSettings
from gateway.store.redis_client import connect
from tests.integration.sessions.server import Server, running_server
from tests.integration.verifier.target import Target

_VERSION = re.compile(r"(redis|valkey) \d")


@pytest.fixture(scope="module")
def second() -> Iterator[Server]:
    with running_server() as running:
        yield running


async def found(target: Target, sessions: str, blocks: str) -> dict[str, str]:
    """Return the findings about both stores, without those about their versions."""
    settings = GatewaySettings(
        model=TokenizerSettings(path=Path(target.folder)),
        http="127.0.0.1:0",
        address="127.0.0.1:0",
        verifiers=("127.0.0.1:1",),
        redis_url=sessions,
        kv=KvSettings(redis_url=blocks),
    )
    written: list[str] = []
    await check(settings, written.append)
    lines = [json.loads(line) for line in written]
    return {
        line["name"]: line["status"] for line in lines if "store" in line["name"] and not _VERSION.match(line["detail"])
    }


SESSIONS = dict.fromkeys(("session store eviction", "session store persistence"), "ok")


async def test_each_server_is_asked_for_what_it_holds(target: Target, server: Server, second: Server) -> None:
    unfit = {"block store eviction": "warn", "block store persistence": "warn"}
    assert await found(target, server.url, second.url) == SESSIONS | unfit
    async with connect(second.url) as client:
        for setting in (("appendonly", "no"), ("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")):
            await client.config_set(*setting)
    assert await found(target, server.url, second.url) == SESSIONS | {"block store eviction": "ok"}
    async with connect(server.url) as client:
        await client.config_set("appendfsync", "no")
        try:
            assert (await found(target, server.url, ""))["session store persistence"] == "warn"
        finally:
            await client.config_set("appendfsync", "always")


async def test_one_server_for_both_is_refused(target: Target, server: Server) -> None:
    lines = await found(target, server.url, f"{server.url}?db=1")
    assert lines == SESSIONS | {"block store server": "fail"}


async def test_blocks_without_a_server_are_a_warning(target: Target, server: Server) -> None:
    assert await found(target, server.url, "redis://127.0.0.1:1/0") == SESSIONS | {"block store": "warn"}
