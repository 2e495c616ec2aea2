"""Leadership by one Lease: who holds it acts, and knows the number of its term.

No two clocks are compared: a Lease that has not changed for its own duration, by this process's clock, is free
(https://pkg.go.dev/k8s.io/client-go/tools/leaderelection). `leaseTransitions` is the fencing number.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

_NOT_FOUND, _CONFLICT = 404, 409

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Term:
    """The time in which one process leads."""

    number: int
    """Rises with every change of leader."""
    ends: float
    """By `clock`, unless it is renewed before."""


class Leadership:
    """One candidate for one Lease."""

    def __init__(
        self,
        api: Any,
        place: tuple[str, str],
        identity: str,
        duration: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`api` is an ApiClient of kubernetes.aio, `place` the Lease's namespace and name."""
        from kubernetes.aio import client

        self._client = client
        self._leases = client.CoordinationV1Api(api)
        self._namespace, self._name = place
        self._identity = identity
        self._duration = duration
        self._clock = clock
        self._seen: tuple[str, float] = ("", 0.0)
        """The version of somebody else's Lease, and when it was first seen."""

    async def hold(self) -> Term | None:
        """Take or renew the Lease; None when somebody else has it.

        Raises:
            ApiException, OSError: the API server does not answer, or does not allow it.
        """
        asked = self._clock()
        lease = await self._read()
        try:
            if lease is None:
                written = await self._leases.create_namespaced_lease(self._namespace, self._new())
            elif self._free(lease):
                written = await self._leases.replace_namespaced_lease(self._name, self._namespace, self._taken(lease))
            else:
                return None
        except self._client.ApiException as error:
            if error.status == _CONFLICT:  # another candidate was first
                return None
            raise
        return Term(written.spec.lease_transitions or 0, asked + self._duration)

    async def give_back(self) -> None:
        """Let another take it at once, where it is ours."""
        lease = await self._read()
        if lease is not None and lease.spec.holder_identity == self._identity:
            lease.spec.holder_identity = ""
            await self._leases.replace_namespaced_lease(self._name, self._namespace, lease)

    async def _read(self) -> Any:
        try:
            return await self._leases.read_namespaced_lease(self._name, self._namespace)
        except self._client.ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def _free(self, lease: Any) -> bool:
        holder = lease.spec.holder_identity
        if not holder or holder == self._identity:
            return True
        if lease.metadata.resource_version != self._seen[0]:
            self._seen = (lease.metadata.resource_version, self._clock())
        silent = self._clock() - self._seen[1]
        return silent > (lease.spec.lease_duration_seconds or self._duration)

    def _new(self) -> Any:
        metadata = self._client.V1ObjectMeta(name=self._name, namespace=self._namespace)
        return self._client.V1Lease(metadata=metadata, spec=self._spec(transitions=1, acquired=_now()))

    def _taken(self, lease: Any) -> Any:
        """The Lease with this process as holder; its version makes the write fail when anybody else was first."""
        old = lease.spec
        transitions, acquired = old.lease_transitions or 0, old.acquire_time
        if old.holder_identity != self._identity:
            transitions, acquired = transitions + 1, _now()
            _log.info("leadership_taken", term=transitions, after=old.holder_identity or "nobody")
        lease.spec = self._spec(transitions, acquired)
        return lease

    def _spec(self, transitions: int, acquired: datetime) -> Any:
        return self._client.V1LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=round(self._duration),
            acquire_time=acquired,
            renew_time=_now(),
            lease_transitions=transitions,
        )


def _now() -> datetime:
    """Never on a whole second: such a time would be written without the fraction that the API asks for."""
    now = datetime.now(UTC)
    return now.replace(microsecond=max(now.microsecond, 1))
