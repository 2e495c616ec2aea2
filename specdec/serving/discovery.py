"""Discovery of a service's endpoints from a list or from DNS, as a complete snapshot after every change.

While a source does not answer, its last snapshot stays valid. A resolver failure therefore drops no endpoint.
"""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, Self

import structlog
from prometheus_client import CollectorRegistry, Gauge
from pydantic import Field, model_validator

from specdec.serving.addresses import Address, join_address, split_address
from specdec.serving.settings import Section

_log = structlog.get_logger()


class DiscoverySettings(Section):
    """How the endpoints are discovered."""

    kind: Literal["static", "dns"] = "static"
    """`static` takes the list of addresses; `dns` resolves `names` again and again, as a headless Service needs."""
    names: tuple[Address, ...] = ()
    """For `dns`: names as `host:port`; each A and AAAA record of a name is one endpoint."""
    every: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between resolutions."""

    @model_validator(mode="after")
    def _has_names(self) -> Self:
        if self.kind == "dns" and not self.names:
            raise ValueError("names must not be empty for dns")
        return self


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One replica of a service."""

    address: str
    """`host:port`."""
    uid: str = ""
    """Unique id that distinguishes successive replicas with the same address; empty if unknown."""
    draining: bool = False
    """Whether the replica is draining: it finishes its work and takes no new work."""

    @property
    def key(self) -> str:
        """Name of the replica in rendezvous hashing."""
        return self.uid or self.address


Endpoints = tuple[Endpoint, ...]
"""A complete snapshot, sorted, with each address once."""


class Source(Protocol):
    """Discovers the endpoints of one service."""

    @property
    def age(self) -> float:
        """Seconds since the last answer, and thus the maximum age of the snapshot."""

    def snapshots(self) -> AsyncGenerator[Endpoints]:
        """Yield all endpoints immediately and after every change, forever."""


class StaticSource:
    """A fixed list of endpoints."""

    age = 0.0

    def __init__(self, addresses: Iterable[str]) -> None:
        self._endpoints = tuple(sorted({Endpoint(address) for address in addresses}))

    async def snapshots(self) -> AsyncGenerator[Endpoints]:
        yield self._endpoints
        await asyncio.Event().wait()


class DnsSource:
    """Endpoints from DNS names, resolved periodically.

    A name that does not exist has no endpoints, which is how a headless Service without ready pods appears. A failed
    resolution counts as no answer.
    """

    def __init__(self, names: Sequence[str], every: float) -> None:
        self._names = names
        self._every = every
        self._answered = time.monotonic()

    @property
    def age(self) -> float:
        return time.monotonic() - self._answered

    async def snapshots(self) -> AsyncGenerator[Endpoints]:
        known: Endpoints | None = None
        while True:
            try:
                found = await resolve(self._names)
            except OSError as error:
                _log.warning("resolution_failed", names=self._names, error=str(error))
            else:
                self._answered = time.monotonic()
                if found != known:
                    known = found
                    yield found
            await asyncio.sleep(self._every)


async def resolve(names: Iterable[str]) -> Endpoints:
    """Return one endpoint for each A and AAAA record of the names `host:port`; none for a name that does not exist.

    Raises:
        OSError: the resolver failed.
    """
    found = await asyncio.gather(*(_addresses(*split_address(name)) for name in names))
    return tuple(Endpoint(address) for address in sorted(set().union(*found)))


async def _addresses(host: str, port: int) -> set[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, socket.EAI_NODATA}:
            return set()
        raise
    return {join_address(str(address[0]), port) for *_, address in found}


def source_of(settings: DiscoverySettings, listed: Iterable[str]) -> Source:
    """Create the source that the settings select. `listed` is the static list of addresses."""
    if settings.kind == "dns":
        return DnsSource(settings.names, settings.every)
    return StaticSource(listed)


async def first_snapshot(source: Source, timeout: float) -> Endpoints:
    """Return the current endpoints.

    Raises:
        TimeoutError: the source did not answer within `timeout` seconds.
    """
    async with asyncio.timeout(timeout), aclosing(source.snapshots()) as snapshots:
        return await anext(snapshots)


def watch_age(registry: CollectorRegistry, *sources: Source) -> None:
    """Export the age of the oldest source answer as a metric."""
    age = Gauge("specdec_discovery_sync_age_seconds", "Since the source of endpoints last answered.", registry=registry)
    age.set_function(lambda: max(source.age for source in sources))
