"""Endpoints from a list and from DNS."""

import asyncio
import socket
from contextlib import aclosing

import pytest
from pydantic import ValidationError

from specdec.serving.discovery import DiscoverySettings, DnsSource, Endpoint, Endpoints, StaticSource, source_of


class Resolver:
    """DNS answers, one after the other; the last one repeats."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]


async def first(source: DnsSource | StaticSource, count: int) -> list[Endpoints]:
    found = []
    async with aclosing(source.snapshots()) as snapshots:
        async for endpoints in snapshots:
            found.append(endpoints)
            if len(found) == count:
                break
    return found


def resolve_with(monkeypatch: pytest.MonkeyPatch, resolver: Resolver) -> DnsSource:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver)
    return DnsSource(["drafter:50052"], every=0.001)


async def test_a_list_is_one_snapshot_in_order() -> None:
    (found,) = await first(StaticSource(["b:1", "a:1", "b:1"]), 1)
    assert found == (Endpoint("a:1"), Endpoint("b:1"))


async def test_each_record_of_a_name_is_an_endpoint_and_only_changes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(["10.0.0.2", "10.0.0.1"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "fd00::1"])
    found = await first(resolve_with(monkeypatch, resolver), 2)
    assert found == [
        (Endpoint("10.0.0.1:50052"), Endpoint("10.0.0.2:50052")),
        (Endpoint("10.0.0.2:50052"), Endpoint("[fd00::1]:50052")),
    ]
    assert resolver.asked == 3


async def test_a_resolver_that_fails_has_nobody_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(["10.0.0.1"], socket.gaierror(socket.EAI_AGAIN, "try again"), ["10.0.0.2"])
    found = await first(resolve_with(monkeypatch, resolver), 2)
    assert found == [(Endpoint("10.0.0.1:50052"),), (Endpoint("10.0.0.2:50052"),)]


async def test_a_name_that_does_not_exist_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(["10.0.0.1"], socket.gaierror(socket.EAI_NONAME, "no such name"))
    assert await first(resolve_with(monkeypatch, resolver), 2) == [(Endpoint("10.0.0.1:50052"),), ()]


async def test_the_age_grows_while_the_resolver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    source = resolve_with(monkeypatch, Resolver(["10.0.0.1"], socket.gaierror(socket.EAI_AGAIN, "try again")))
    await first(source, 1)
    monkeypatch.setattr("time.monotonic", lambda: 107.0)
    assert source.age == 7.0


def test_dns_needs_names() -> None:
    with pytest.raises(ValidationError, match="names must not be empty"):
        DiscoverySettings(kind="dns")
    with pytest.raises(ValidationError, match="host:port"):
        DiscoverySettings(kind="dns", names=("drafter",))
    assert isinstance(source_of(DiscoverySettings(kind="dns", names=("drafter:1",)), ()), DnsSource)
    assert isinstance(source_of(DiscoverySettings(), ["a:1"]), StaticSource)
