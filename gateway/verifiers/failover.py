"""The rounds of one generation, through as many verifiers as it takes."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import structlog

from gateway.config import FailoverSettings
from gateway.metrics import GatewayMetrics
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.verifier import Call, VerifiedRound, Verifier
from specdec.errors import DeadlineExceeded, Draining, NoVerifier, QueueFull, SpecdecError

_log = structlog.get_logger()


class Failover:
    """Goes on with another verifier where one was lost; what is not committed never happened."""

    def __init__(self, pool: VerifierPool, settings: FailoverSettings, metrics: GatewayMetrics) -> None:
        self._pool = pool
        self._settings = settings
        self._metrics = metrics

    async def rounds(
        self, verifier: Verifier, system_fingerprint: str, next_call: Callable[[], Awaitable[Call]], deadline: float
    ) -> AsyncGenerator[VerifiedRound]:
        """Rounds until one has a finish; each is taken as committed when the one after it is asked for.

        Args:
            verifier: the first.
            system_fingerprint: what every later one must have.
            next_call: makes the call for the rest of the generation, under a new epoch.
            deadline: `time.monotonic()` at which the caller stops waiting.

        Raises:
            SpecdecError: the last loss, when there were too many, or no verifier within the time given.
        """
        failed: list[str] = []
        while True:
            call = await next_call()
            verifier = await self._pool.settle(verifier, call.session_id, call.epoch, system_fingerprint, failed)
            lost: SpecdecError = NoVerifier(f"verifier {verifier.address} ended without finishing")
            try:
                rounds = verifier.generate(call, _remaining(deadline))
                with self._pool.serving(verifier):
                    async with aclosing(rounds):
                        async for verified in rounds:
                            yield verified
                            if verified.finish is not None:
                                return
                            failed = []
            except (NoVerifier, Draining, QueueFull) as error:
                lost = error
            failed.append(verifier.address)
            self._note(verifier, lost, failed)
            seconds = min(self._settings.seconds, deadline - time.monotonic())
            verifier, _ = await self._pool.find(call.session_id, system_fingerprint, seconds, failed)

    def _note(self, verifier: Verifier, lost: SpecdecError, failed: Sequence[str]) -> None:
        """Count a loss; raise it when it was one too many, or when every verifier is full."""
        _log.warning("verifier_lost", verifier=verifier.address, error=lost.message, in_a_row=len(failed))
        if len(failed) > self._settings.attempts:
            raise lost
        if isinstance(lost, QueueFull):
            if not self._pool.ready_addresses - set(failed):
                raise lost
        else:
            self._pool.lost(verifier)
        self._metrics.failovers.inc()


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise DeadlineExceeded("the deadline passed")
    return remaining
