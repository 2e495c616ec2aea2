"""One client for each drafter: it starts when its drafter is found, and ends when the drafter is gone."""

import asyncio
from contextlib import aclosing

import structlog

from specdec.serving.discovery import Endpoints, Source
from verifier_service.drafters.client import DrafterClient, Identity
from verifier_service.drafters.link import DrafterLink
from verifier_service.drafters.pool import DrafterPool
from verifier_service.metrics import VerifierMetrics

_log = structlog.get_logger()


class DrafterDiscovery:
    """Keeps the links of a pool to exactly the drafters that a source names."""

    def __init__(self, pool: DrafterPool, identity: Identity, probe: float, metrics: VerifierMetrics) -> None:
        """`probe` is the time in seconds between two waits for a drafter that hangs."""
        self._pool = pool
        self._identity = identity
        self._probe = probe
        self._metrics = metrics
        self._clients: dict[str, asyncio.Task[None]] = {}

    async def run(self, source: Source) -> None:
        """Follow the snapshots of the source until cancelled."""
        async with asyncio.TaskGroup() as tasks, aclosing(source.snapshots()) as snapshots:
            async for endpoints in snapshots:
                self._replace(endpoints, tasks)

    def _replace(self, endpoints: Endpoints, tasks: asyncio.TaskGroup) -> None:
        wanted = {endpoint.address for endpoint in endpoints if not endpoint.draining}
        _log.info("drafters_found", addresses=sorted(wanted))
        for address in self._clients.keys() - wanted:
            self._clients.pop(address).cancel()
            self._pool.remove(address)
        for address in sorted(wanted - self._clients.keys()):
            link = DrafterLink(address, self._probe, self._metrics)
            self._pool.add(link)
            self._clients[address] = tasks.create_task(DrafterClient(link, self._identity).run())
