"""The rounds of one generation, from as many verifiers as it takes to finish it."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import structlog

from gateway.config import FailoverSettings
from gateway.metrics import GatewayMetrics
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.client import VerifierClient
from gateway.verifiers.rounds import RoundCheck
from specdec.errors import DeadlineExceeded, Draining, NoVerifier, QueueFull, SpecdecError
from specdec.wire.generation import GenerationCall, Round, VerifierInfo

_CLOSE = 1.0
"""Seconds before the deadline from which on a verifier may find it passed; one that finds it earlier is lost."""

_log = structlog.get_logger()


class Failover:
    """Continues a generation at another verifier when one is lost; rounds that were not committed are dropped."""

    def __init__(self, pool: VerifierPool, settings: FailoverSettings, metrics: GatewayMetrics) -> None:
        self._pool = pool
        self._settings = settings
        self._metrics = metrics

    async def rounds(
        self,
        verifier: VerifierClient,
        info: VerifierInfo,
        next_call: Callable[[], Awaitable[GenerationCall]],
        deadline: float,
    ) -> AsyncGenerator[Round]:
        """The rounds up to one that has a finish; a round is committed by the time the next one is asked for.

        Args:
            info: of its model, which every later verifier must have.
            next_call: makes the call for the rest of the generation, under a new epoch.
            deadline: the `time.monotonic()` at which the caller stops waiting.

        Raises:
            SpecdecError: the error of the last verifier lost, when too many were lost in a row.
            NoVerifier: no other verifier was ready in time.
            DeadlineExceeded: the deadline passed.
        """
        system_fingerprint = info.system_fingerprint
        failed: list[str] = []  # addresses of the verifiers lost since the last committed round
        while True:
            call = await next_call()
            verifier = await self._pool.pinned_verifier(
                verifier, call.session_id, call.epoch, system_fingerprint, failed
            )
            lost: SpecdecError = NoVerifier(f"verifier {verifier.address} ended without finishing")
            try:
                check = RoundCheck(call, info.vocab_size)
                rounds = verifier.generate(call, _remaining(deadline))
                with self._pool.serving(verifier):
                    async with aclosing(rounds):
                        async for verified in rounds:
                            check.take(verified)
                            yield verified
                            if verified.finish is not None:
                                return
                            failed = []
            except (NoVerifier, Draining, QueueFull, DeadlineExceeded) as error:
                if isinstance(error, DeadlineExceeded) and deadline - time.monotonic() < _CLOSE:
                    raise
                lost = error
            failed.append(verifier.address)
            self._count_loss(verifier, lost, failed)
            patience = min(self._settings.seconds, deadline - time.monotonic())
            verifier, _ = await self._pool.wait_for_verifier(call.session_id, system_fingerprint, patience, failed)

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
