"""Control loop: hold the Lease, read the metrics, decide, scale. If any step fails, nothing changes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.discovery.cluster import found
from gateway.ratio_controller.config import RatioSettings
from gateway.ratio_controller.lease import Leadership
from gateway.ratio_controller.policy import Recommendation, Stabiliser, recommend
from specdec.serving.telemetry.snapshot import MetricsSnapshot

_CONFLICT = 409

_log = structlog.get_logger()


class ControllerMetrics:
    """Every instrument of the controller, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.leader = Gauge("specdec_ratio_leader", "1 in the replica that acts.", registry=registry)
        self.term = Gauge("specdec_ratio_term", "Number of the term it leads in.", registry=registry)
        self.ratio = Gauge("specdec_ratio_drafters_per_verifier", "N_d / N_v by the formula.", registry=registry)
        self.speedup = Gauge("specdec_ratio_speedup", "What drafts bring a session, by the formula.", registry=registry)
        self.current = Gauge("specdec_ratio_current_drafters", "Drafters that there should be now.", registry=registry)
        self.wanted = Gauge("specdec_ratio_wanted_drafters", "Drafters wanted, before it lasts.", registry=registry)
        self.wishes = Counter("specdec_ratio_wishes", "Looks, by what decided.", ["reason"], registry=registry)
        self.changes = Counter("specdec_ratio_changes", "Changes of the scale.", ["direction"], registry=registry)
        self.failures = Counter("specdec_ratio_failures", "Looks that came to nothing.", ["what"], registry=registry)
        self.last_success = Gauge(
            "specdec_ratio_last_look_timestamp_seconds", "When a look last came to something.", registry=registry
        )

    def record(self, recommendation: Recommendation, current: int) -> None:
        """Export one recommendation and the current number of drafters."""
        self.wishes.labels(recommendation.reason).inc()
        self.wanted.set(recommendation.drafters)
        self.current.set(current)
        if recommendation.ratio is not None:
            self.ratio.set(recommendation.ratio)
        if recommendation.speedup is not None:
            self.speedup.set(recommendation.speedup)
        self.last_success.set_to_current_time()


@dataclass(frozen=True, slots=True)
class Scale:
    """Number of replicas of a Deployment."""

    replicas: int
    version: str
    """Resource version of the Deployment."""


class DeploymentScale:
    """`scale` subresource of one Deployment. Every method raises ApiException or OSError if access fails."""

    def __init__(self, api: Any, namespace: str, name: str) -> None:
        """Args: api: an ApiClient of kubernetes.aio."""
        from kubernetes.aio import client

        self._client = client
        self._apps = client.AppsV1Api(api)
        self._namespace = namespace
        self._name = name

    async def read(self) -> Scale:
        """Read the current scale."""
        scale = await self._apps.read_namespaced_deployment_scale(self._name, self._namespace)
        return Scale(scale.spec.replicas or 0, scale.metadata.resource_version)

    async def owner(self) -> Any:
        """Return an owner reference to the Deployment, so that owned objects are deleted with it; None if missing."""
        scale = await found(self._apps.read_namespaced_deployment_scale(self._name, self._namespace))
        kind = {"api_version": "apps/v1", "kind": "Deployment"}
        return scale and self._client.V1OwnerReference(name=self._name, uid=scale.metadata.uid, **kind)

    async def write(self, replicas: int, version: str) -> bool:
        """Set the replicas; return False without a change if the Deployment changed after `version`."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        try:
            await self._apps.patch_namespaced_deployment_scale(
                self._name, self._namespace, body, _content_type="application/merge-patch+json"
            )
        except self._client.ApiException as error:
            if error.status == _CONFLICT:
                return False
            raise
        return True


class Controller:
    """Scales the drafters to the demand of the verifiers."""

    def __init__(
        self,
        settings: RatioSettings,
        parts: tuple[Leadership, DeploymentScale, Callable[[], Awaitable[MetricsSnapshot]]],
        metrics: ControllerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: parts: leader election, scale of the drafters, and a function that reads the metrics."""
        self._settings = settings
        self._election, self._drafters, self._read = parts
        self._metrics = metrics
        self._clock = clock
        self._stabiliser = Stabiliser(settings.scaling)
        self._term = 0
        self.reconciled = False
        """Whether the loop has determined the leader at least once."""

    async def run(self) -> None:
        """Reconcile every `interval` seconds, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.lease.duration / 2):
                    await self.reconcile()
            except Exception as error:  # noqa: BLE001 - after any failure, the next iteration starts afresh
                self._metrics.failures.labels(type(error).__name__).inc()
                _log.warning("reconcile_failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._settings.interval)

    async def reconcile(self) -> None:
        """Read metrics and scale once, and change the scale if the recommendation has lasted long enough."""
        term = await self._election.hold()
        self._metrics.leader.set(term is not None)
        self.reconciled = True
        if term is None:
            return
        if term.number != self._term:  # recommendations of an earlier term may be old
            self._term = term.number
            self._stabiliser = Stabiliser(self._settings.scaling)
        self._metrics.term.set(term.number)
        snapshot = await self._read()
        scale = await self._drafters.read()
        wanted = recommend(snapshot, scale.replicas, self._settings.scaling)
        chosen = self._stabiliser.settle(wanted.drafters, scale.replicas, self._clock())
        self._metrics.record(wanted, scale.replicas)
        if chosen != scale.replicas:
            await self._change(scale, chosen, wanted.reason)

    async def _change(self, scale: Scale, chosen: int, reason: str) -> None:
        """Write the scale with fencing.

        The leadership is confirmed before the write, and the write fails if the Deployment changed after it was read.
        A replaced leader therefore cannot undo its successor's change.
        """
        words = {"from": scale.replicas, "to": chosen, "reason": reason, "term": self._term}
        if self._settings.dry_run:
            _log.info("would_scale", **words)
            return
        term = await self._election.hold()
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
