"""The latest snapshot of a source of endpoints."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from specdec.serving.discovery import Endpoints, Source
from tests.support.gateway_fakes import until


class Follower:
    """Follows a source and holds its latest snapshot."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.latest: Endpoints | None = None

    async def run(self) -> None:
        async with aclosing(self.source.snapshots()) as snapshots:
            async for endpoints in snapshots:
                self.latest = endpoints

    @property
    def hosts(self) -> list[str]:
        """Last numbers of the addresses, with a `-` for those that drain."""
        numbers = [(each.address.partition(":")[0].rpartition(".")[2], each.draining) for each in self.latest or ()]
        return [f"-{number}" if draining else number for number, draining in numbers]

    async def until(self, *hosts: str) -> None:
        await until(lambda: self.hosts == list(hosts))


@asynccontextmanager
async def follow(source: Source) -> AsyncIterator[Follower]:
    """Follow the source in the background."""
    follower = Follower(source)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
