"""Single steps of the controller on a stopped clock: only the leader acts, and only on the state that it read."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gateway.ratio_controller.config import MetricsSettings, RatioSettings, ScalingSettings
from gateway.ratio_controller.controller import Controller, ControllerMetrics, Scale
from gateway.ratio_controller.lease import Term
from specdec.serving.telemetry.scrapes import MetricsUnreadable
from specdec.serving.telemetry.snapshot import MetricsSnapshot
from tests.support.gateway_fakes import until
from tests.support.metrics_fakes import SNAPSHOT


class Scene:
    """A Deployment, a Lease and metrics written by a test."""

    def __init__(self, replicas: int = 2, dry_run: bool = False, up_seconds: float = 0.0) -> None:
        self.now = 100.0
        self.terms: list[Term | None] = []
        """Answers of the Lease; the last one repeats."""
        self.term: Term | None = Term(1, 1e9)
        self.replicas = replicas
        self.version = 1
        self.written: list[int] = []
        self.snapshot = replace(SNAPSHOT, verifiers=20)
        self.fails = False
        self.metrics = ControllerMetrics(CollectorRegistry())
        settings = RatioSettings(
            deployment="drafter",
            metrics=MetricsSettings(prometheus="http://p:1"),
            dry_run=dry_run,
            interval=0.001,
            scaling=ScalingSettings(up_seconds=up_seconds, down_seconds=300),
        )
        parts = (self, self, self.read_metrics)
        self.controller = Controller(settings, parts, self.metrics, lambda: self.now)

    async def hold(self) -> Term | None:
        if self.terms:
            self.term = self.terms.pop(0)
        return self.term

    async def read(self) -> Scale:
        return Scale(self.replicas, str(self.version))

    async def write(self, replicas: int, version: str) -> bool:
        if version != str(self.version):
            return False
        self.replicas, self.version = replicas, self.version + 1
        self.written.append(replicas)
        return True

    async def read_metrics(self) -> MetricsSnapshot:
        if self.fails:
            raise MetricsUnreadable("no metrics")
        return self.snapshot

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


async def test_the_leader_scales() -> None:
    scene = Scene()
    await scene.controller.reconcile()
    assert scene.written == [10]
    assert scene.value("specdec_ratio_changes_total", direction="up") == 1.0
    assert scene.value("specdec_ratio_drafters_per_verifier") == pytest.approx(0.48)


async def test_who_does_not_lead_only_watches() -> None:
    scene = Scene()
    scene.term = None
    await scene.controller.reconcile()
    assert scene.written == []
    assert scene.value("specdec_ratio_leader") == 0.0


async def test_a_dry_run_changes_nothing() -> None:
    scene = Scene(dry_run=True)
    await scene.controller.reconcile()
    assert scene.written == []
    assert scene.value("specdec_ratio_wanted_drafters") == 10.0


async def test_leadership_lost_between_look_and_write_stops_the_write() -> None:
    for after in (None, Term(3, 1e9)):
        scene = Scene()
        scene.terms = [Term(1, 1e9), after]
        await scene.controller.reconcile()
        assert scene.written == []


async def test_a_term_that_is_over_stops_the_write() -> None:
    scene = Scene()
    scene.term = Term(1, scene.now)
    await scene.controller.reconcile()
    assert scene.written == []


async def test_a_scale_that_somebody_else_moved_is_left_to_the_next_look() -> None:
    scene = Scene()
    original = scene.read

    async def read_then_move() -> Scale:
        scale = await original()
        scene.version += 1
        return scale

    scene.read = read_then_move  # type: ignore[method-assign]
    await scene.controller.reconcile()
    assert scene.written == []


async def test_what_was_seen_in_an_earlier_term_counts_for_nothing() -> None:
    scene = Scene(up_seconds=30)
    await scene.controller.reconcile()
    scene.now += 30
    scene.term = Term(2, 1e9)
    await scene.controller.reconcile()
    assert scene.written == []
    scene.now += 30
    await scene.controller.reconcile()
    assert scene.written == [10]


async def test_a_look_that_fails_changes_nothing_and_the_next_is_a_new_one() -> None:
    scene = Scene()
    scene.fails = True
    task = asyncio.create_task(scene.controller.run())
    await until(lambda: scene.value("specdec_ratio_failures_total", what="MetricsUnreadable"))
    assert scene.written == []
    scene.fails = False
    await until(lambda: scene.written == [10])
    task.cancel()
    await asyncio.wait([task])


async def test_down_is_slow_and_reaches_the_minimum_when_drafting_does_not_pay() -> None:
    scene = Scene(replicas=10)
    scene.snapshot = replace(scene.snapshot, alpha=0.05, draft_step=0.02)
    for _ in range(31):
        await scene.controller.reconcile()
        scene.now += 10
    assert scene.written == [1]
