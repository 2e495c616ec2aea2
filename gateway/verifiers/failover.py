"""Finishes a generation at as many verifiers as it takes."""

import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from gateway.config import FailoverSettings
from gateway.metrics import GatewayMetrics
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.client import VerifierClient
from specdec.errors import DeadlineExceeded, Draining, NoVerifier, QueueFull, SpecdecError
from specdec.wire.generation import GenerationCall, VerifierInfo

_CLOSE = 1.0
"""Seconds before the deadline from which on a verifier may find it passed; one that finds it earlier is lost."""

_log = structlog.get_logger()


class Continued(Protocol):
    """A generation that can go on at another verifier."""

    @property
    def committed(self) -> int:
        """Number of output tokens that are committed."""

    async def next_call(self) -> GenerationCall:
        """The call for the rest of the generation, under a new epoch."""

    async def generate_at(
        self, verifier: VerifierClient, info: VerifierInfo, call: GenerationCall, seconds: float
    ) -> None:
        """Generate to the end; raises the error of a verifier that was lost before, once all that came is committed."""


class Failover:
    """Continues a generation at another verifier when one is lost."""

    def __init__(self, pool: VerifierPool, settings: FailoverSettings, metrics: GatewayMetrics) -> None:
        self._pool = pool
        self._settings = settings
        self._metrics = metrics

    async def run(self, generation: Continued, verifier: VerifierClient, info: VerifierInfo, deadline: float) -> None:
        """Generate to the end, from `verifier` on.

        Args:
            info: of its model, which every later verifier must have.
            deadline: the `time.monotonic()` at which the caller stops waiting.

        Raises:
            SpecdecError: the error of the last verifier lost, when too many were lost in a row.
            NoVerifier: no other verifier was ready in time.
            DeadlineExceeded: the deadline passed.
        """
        fingerprint = info.system_fingerprint
        failed: list[str] = []  # addresses of the verifiers lost since the last committed round
        while True:
            call, before = await generation.next_call(), generation.committed
            verifier = await self._pool.pinned_verifier(verifier, call.session_id, call.epoch, fingerprint, failed)
            try:
                with self._pool.serving(verifier):
                    await generation.generate_at(verifier, info, call, _remaining(deadline))
                return
            except (NoVerifier, Draining, QueueFull, DeadlineExceeded) as error:
                if isinstance(error, DeadlineExceeded) and deadline - time.monotonic() < _CLOSE:
                    raise
                failed = [*(failed if generation.committed == before else ()), verifier.address]
                self._count_loss(verifier, error, failed)
            patience = min(self._settings.seconds, deadline - time.monotonic())
            verifier, info = await self._pool.wait_for_verifier(call.session_id, fingerprint, patience, failed)

    def _count_loss(self, verifier: VerifierClient, lost: SpecdecError, failed: Sequence[str]) -> None:
        """Count a lost verifier; raise its error when too many were lost in a row, or when every verifier is full."""
        _log.warning("verifier_lost", verifier=verifier.address, error=lost.message, in_a_row=len(failed))
        if len(failed) > self._settings.attempts:
            raise lost
        if isinstance(lost, QueueFull):
            if not self._pool.ready_addresses - set(failed):
                raise lost
        else:
            self._pool.mark_lost(verifier)
        self._metrics.failovers.inc()


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise DeadlineExceeded("the deadline passed")
    return remaining
