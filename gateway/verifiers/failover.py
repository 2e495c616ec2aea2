"""Continues a generation at other verifiers until it finishes."""

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
"""Seconds before the deadline within which a verifier may report it as passed; an earlier report counts as a loss."""

_log = structlog.get_logger()


class Continued(Protocol):
    """Generation that can continue at another verifier."""

    @property
    def committed(self) -> int:
        """Number of committed output tokens."""

    async def next_call(self) -> GenerationCall:
        """Return the call for the rest of the generation, under a new epoch."""

    async def generate_at(
        self, verifier: VerifierClient, info: VerifierInfo, call: GenerationCall, seconds: float
    ) -> None:
        """Generate to the end. If the verifier is lost, raise its error after the received rounds are committed."""


class Failover:
    """Continues a generation at another verifier if one is lost."""

    def __init__(self, pool: VerifierPool, settings: FailoverSettings, metrics: GatewayMetrics) -> None:
        self._pool = pool
        self._settings = settings
        self._metrics = metrics

    async def run(self, generation: Continued, verifier: VerifierClient, info: VerifierInfo, deadline: float) -> None:
        """Generate to the end, first at `verifier`.

        Args:
            generation: generation to run.
            verifier: first verifier.
            info: facts of its model; every later verifier must have the same fingerprint.
            deadline: time at which the caller stops waiting, by `time.monotonic()`.

        Raises:
            SpecdecError: too many consecutive verifiers were lost; the error of the last one.
            NoVerifier: no other verifier became ready in time.
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
        """Count a lost verifier; raise its error if too many were lost in a row, or if every verifier is full."""
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
