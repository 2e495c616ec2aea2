"""The loop: lead, look, decide, act; every step may fail, and then nothing is changed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from gateway.ratio_controller.config import RatioSettings
from gateway.ratio_controller.lease import Term
from gateway.ratio_controller.metrics import ControllerMetrics
from gateway.ratio_controller.policy import Stabiliser, wish
from gateway.ratio_controller.scale import Scale
from specdec.serving.readings import Reading

_log = structlog.get_logger()


class Lead(Protocol):
    """Leadership (see gateway.ratio_controller.lease)."""

    async def hold(self) -> Term | None:
        """Take or renew it; None when somebody else has it."""


class Drafters(Protocol):
    """The drafters' scale (see gateway.ratio_controller.scale)."""

    async def read(self) -> Scale:
        """The scale now."""

    async def write(self, replicas: int, version: str) -> bool:
        """Set the replicas if nothing changed since; False when it did."""


class Controller:
    """Keeps the drafters in step with the verifiers."""

    def __init__(
        self,
        settings: RatioSettings,
        parts: tuple[Lead, Drafters, Callable[[], Awaitable[Reading]]],
        metrics: ControllerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`parts` are leadership, the drafters' scale, and what gives the live numbers."""
        self._settings = settings
        self._lead, self._drafters, self._read = parts
        self._metrics = metrics
        self._clock = clock
        self._stabiliser = Stabiliser(settings.scaling)
        self._term = 0
        self.looked = False
        """Whether a look has come to something."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.lease.duration / 2):
                    await self.look()
            except Exception as error:  # noqa: BLE001 - whatever failed, the next look is a new one
                self._metrics.failures.labels(type(error).__name__).inc()
                _log.warning("look_failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._settings.interval)

    async def look(self) -> None:
        """One look, and what follows of it."""
        term = await self._lead.hold()
        self._metrics.leader.set(term is not None)
        self.looked = True
        if term is None:
            return
        if term.number != self._term:  # what was seen in an earlier term may be long ago
            self._term = term.number
            self._stabiliser = Stabiliser(self._settings.scaling)
        self._metrics.term.set(term.number)
        reading = await self._read()
        scale = await self._drafters.read()
        found = wish(reading, scale.replicas, self._settings.scaling)
        chosen = self._stabiliser.settle(found.drafters, scale.replicas, self._clock())
        self._metrics.saw(found, scale.replicas)
        if chosen != scale.replicas:
            await self._change(scale, chosen, found.reason)

    async def _change(self, scale: Scale, chosen: int, reason: str) -> None:
        """Write, fenced: leadership is confirmed between the read and the write, and the write fails if the Deployment
        was changed since it was read. So a leader that was replaced can undo nothing its successor did.
        """
        words = {"from": scale.replicas, "to": chosen, "reason": reason, "term": self._term}
        if self._settings.dry_run:
            _log.info("would_scale", **words)
            return
        term = await self._lead.hold()
        left = term.ends - self._clock() if term is not None and term.number == self._term else 0.0
        if left <= 0.0:
            _log.warning("leadership_lost", **words)
            return
        async with asyncio.timeout(left):
            written = await self._drafters.write(chosen, scale.version)
        if not written:
            _log.info("scale_moved", **words)
            return
        _log.info("scaled", **words)
        self._metrics.changes.labels("up" if chosen > scale.replicas else "down").inc()
