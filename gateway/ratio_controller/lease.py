"""Leader election with one Kubernetes Lease: its holder is the leader, with a term number.

The clocks of two processes are never compared: a Lease that has not changed for its own duration, by the clock of
this process, is free (https://pkg.go.dev/k8s.io/client-go/tools/leaderelection). `leaseTransitions` is the fencing
number.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from gateway.discovery.cluster import found

_FORBIDDEN, _CONFLICT = 403, 409

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Term:
    """Period in which one process leads."""

    number: int
    """Number of the term, which rises with every change of leader."""
    ends: float
    """End of the term without a renewal, in seconds of the candidate's clock."""


class Leadership:
    """One candidate for one Lease."""

    def __init__(
        self,
        api: Any,
        place: tuple[str, str],
        identity: str,
        duration: float,
        clock: Callable[[], float] = time.monotonic,
        owner: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """Make a candidate.

        Args:
            api: an ApiClient of kubernetes.aio.
            place: namespace and name of the Lease.
            identity: the name of this candidate, different for each.
            duration: seconds for which the Lease is held without a renewal.
            clock: seconds that only rise.
            owner: names the object with which the cluster is to delete the Lease; None, or its answer None, for none.
        """
        from kubernetes.aio import client

        self._client = client
        self._leases = client.CoordinationV1Api(api)
        self._namespace, self._name = place
        self._identity = identity
        self._duration = duration
        self._clock = clock
        self._owner = owner
        self._seen: tuple[str, float] = ("", 0.0)
        """The version of a Lease that another candidate holds, and when it was first seen."""

    async def hold(self) -> Term | None:
        """Take or renew the Lease; return None if another candidate holds it.

        Raises:
            ApiException, OSError: the API server does not answer, or denies access.
        """
        asked = self._clock()
        lease = await self._read()
        try:
            if lease is None:
                lease = self._client.V1Lease(
                    metadata=self._client.V1ObjectMeta(name=self._name), spec=self._client.V1LeaseSpec()
                )
                self._take(lease.spec)
                await self._own(lease.metadata)
                written = await self._leases.create_namespaced_lease(self._namespace, lease)
            elif self._free(lease):
                self._take(lease.spec)
                await self._own(lease.metadata)
                # The version of the Lease makes the write fail after a change by another candidate.
                written = await self._leases.replace_namespaced_lease(self._name, self._namespace, lease)
            else:
                return None
        except self._client.ApiException as error:
            if error.status == _CONFLICT:  # another candidate has written it in between
                return None
            if error.status == _FORBIDDEN and self._owner is not None:
                # Some clusters let only those who may delete an object say what it is deleted with.
                _log.warning("lease_outlives_release", reason=error.reason)
                self._owner = None
            raise
        return Term(written.spec.lease_transitions or 0, asked + self._duration)

    async def release(self) -> None:
        """Release the Lease, if this candidate holds it, so that another can take it at once."""
        lease = await self._read()
        if lease is not None and lease.spec.holder_identity == self._identity:
            lease.spec.holder_identity = ""
            await self._leases.replace_namespaced_lease(self._name, self._namespace, lease)

    async def _own(self, metadata: Any) -> None:
        """Have the Lease deleted with its owner, unless it has one."""
        if self._owner is not None and not metadata.owner_references:
            owner = await self._owner()
            metadata.owner_references = [owner] if owner is not None else None

    async def _read(self) -> Any:
        return await found(self._leases.read_namespaced_lease(self._name, self._namespace))

    def _free(self, lease: Any) -> bool:
        holder = lease.spec.holder_identity
        if not holder or holder == self._identity:
            return True
        if lease.metadata.resource_version != self._seen[0]:
            self._seen = (lease.metadata.resource_version, self._clock())
        silent = self._clock() - self._seen[1]
        return silent > (lease.spec.lease_duration_seconds or self._duration)

    def _take(self, spec: Any) -> None:
        """Write this candidate as holder into the spec of a Lease; a renewed term keeps its number and its start
        time."""
        if spec.holder_identity != self._identity:
            spec.lease_transitions, spec.acquire_time = (spec.lease_transitions or 0) + 1, _now()
            _log.info("leadership_taken", term=spec.lease_transitions, after=spec.holder_identity or "nobody")
        spec.holder_identity = self._identity
        spec.lease_duration_seconds = round(self._duration)
        spec.renew_time = _now()


def _now() -> datetime:
    """The time now, never a whole second, since that would be written without the fraction that the API requires."""
    now = datetime.now(UTC)
    return now.replace(microsecond=max(now.microsecond, 1))
