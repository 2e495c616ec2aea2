"""Adopts orphaned turns: finds those whose gateway stopped renewing the lease, and continues them for their callers."""

import asyncio
import random
import time

import structlog

from gateway.store.values import LapsedTurn
from gateway.turns.services import Services
from gateway.turns.turn import Header, Turn, header_from_bytes
from gateway.turns.turn_runner import release
from gateway.turns.turn_stream import TurnStream
from specdec.errors import SessionStoreDown, SpecdecError

LIMIT = 16
"""Most orphans taken per search, so that all gateways share the work of a dead one."""

_log = structlog.get_logger()


class Adopter:
    """Searches for orphaned turns about twice per lease, at random times, so that gateways do not synchronize."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self) -> None:
        """Search periodically until the drain begins."""
        while not self._services.drain.closing:
            await asyncio.sleep(self._services.settings.lease * random.uniform(0.25, 0.75))
            await self.adopt_orphans()

    async def adopt_orphans(self) -> None:
        """Adopt the orphans that one search finds. Do nothing if the session store is down."""
        try:
            orphans = await self._services.sessions.lapsed_turns(LIMIT)
        except SessionStoreDown:
            return
        for orphan in orphans:
            turn = Turn(orphan.session_id, orphan.tenant, orphan.turn)
            if self._services.broadcasts.get(turn.name) is not None:  # it runs here, and could not renew its lease
                continue
            try:
                outcome = await self._adopt(turn, orphan)
            except SpecdecError as error:  # another gateway has it, it has ended, or it is unreadable
                _log.info("turn_not_adopted", generation=turn.name, why=str(error))
                continue
            self._services.metrics.orphans.labels(outcome).inc()
            _log.info("turn_adopted", generation=turn.name, outcome=outcome, silent=round(orphan.silent, 3))

    async def _adopt(self, turn: Turn, orphan: LapsedTurn) -> str:
        """Acquire the turn, then continue it ("continued") or release it until a caller resumes it ("paused")."""
        services = self._services
        view = await services.sessions.read(turn.session_id, turn.tenant, turn.number)
        header = header_from_bytes(view.params, view.prompt)
        services.models.of_turn(header.model)  # a turn of a model that is not served here is left to other gateways
        grace_left = self._grace_left(header, orphan)
        lease = await services.sessions.acquire(turn.session_id, services.owner, turn=turn.number)
        if services.broadcasts.get(turn.name) is not None:  # meanwhile its caller resumed it here
            return "continued"
        if grace_left <= 0:
            await release(services.sessions, turn.session_id, lease.epoch)
            return "paused"
        deadline = time.monotonic() + services.settings.request_timeout
        stream = TurnStream(services, turn, deadline)
        services.broadcasts.start(turn.name, stream, services.settings.grace).expect_reader(grace_left)
        return "continued"

    def _grace_left(self, header: Header, orphan: LapsedTurn) -> float:
        """Return the seconds left for the caller to resume, counted from the end of the lost gateway's lease."""
        return self._services.settings.grace - orphan.silent if header.resumable else 0.0
