"""Finds turns whose gateway fell silent, and goes on with each for as long as its caller may come back to it."""

import asyncio
import random
import time

import structlog

from gateway.store.values import LapsedTurn
from gateway.turns.ownership import released
from gateway.turns.services import Services
from gateway.turns.turn import Header, Turn, header_from_bytes
from gateway.turns.turn_stream import TurnStream
from specdec.errors import SessionStoreDown, SpecdecError

LIMIT = 16
"""Orphans one look takes: a gateway that died leaves its work to all the others."""

_log = structlog.get_logger()


class Adopter:
    """Looks twice a lease or so, never in step with the other gateways."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self) -> None:
        """Look until the process is on its way out."""
        while not self._services.drain.closing:
            await asyncio.sleep(self._services.settings.lease * random.uniform(0.25, 0.75))
            await self.look()

    async def look(self) -> None:
        """Take over what is found; a store that is away has nothing to tell."""
        try:
            orphans = await self._services.sessions.lapsed_turns(LIMIT)
        except SessionStoreDown:
            return
        for orphan in orphans:
            turn = Turn(orphan.session_id, orphan.tenant, orphan.turn)
            if self._services.live.get(turn.name) is not None:  # our own, which was kept from renewing it
                continue
            try:
                outcome = await self._adopt(turn, orphan)
            except (SpecdecError, ValueError) as error:  # taken by another, over by now, or not to be read
                _log.info("turn_not_adopted", generation=turn.name, why=str(error))
                continue
            self._services.metrics.orphans.labels(outcome).inc()
            _log.info("turn_adopted", generation=turn.name, outcome=outcome, silent=round(orphan.silent, 3))

    async def _adopt(self, turn: Turn, orphan: LapsedTurn) -> str:
        services = self._services
        view = await services.sessions.read(turn.session_id, turn.tenant, turn.number)
        left = self._patience(header_from_bytes(view.params, view.prompt), orphan)
        lease = await services.sessions.acquire(turn.session_id, services.owner, turn=turn.number)
        if services.live.get(turn.name) is not None:  # a caller came back to it meanwhile, and made it run here
            return "continued"
        if left <= 0:
            await released(services.sessions, turn.session_id, lease.epoch)
            return "paused"
        telling = TurnStream(services, turn, time.monotonic() + services.settings.request_timeout)
        services.live.start(turn.name, telling.events(), services.settings.grace).expect_reader(left)
        return "continued"

    def _patience(self, header: Header, orphan: LapsedTurn) -> float:
        """Seconds for which its caller may still come back: nobody knew of the loss before the lease ran out."""
        return self._services.settings.grace - orphan.silent if header.resumable else 0.0
