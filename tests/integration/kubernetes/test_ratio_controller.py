"""The controller with an API server: one replica leads, and it may write only the drafters' scale."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from kubernetes.aio import client as client_module

from gateway.discovery.cluster import ClusterSettings, connect
from gateway.ratio_controller.app import serve
from gateway.ratio_controller.config import LeaseSettings, MetricsSettings, RatioSettings, ScalingSettings
from gateway.ratio_controller.controller import DeploymentScale, Scale
from gateway.ratio_controller.lease import Leadership
from specdec.serving.telemetry.snapshot import MetricsSnapshot
from tests.fake_kubernetes import FakeKubernetes
from tests.fake_kubernetes.access import Request
from tests.fake_kubernetes.store import Kind, Object
from tests.support.clock import Clock
from tests.support.gateway_fakes import until
from tests.support.metrics_fakes import SNAPSHOT

DEPLOYMENTS: Kind = ("apps", "deployments", "ns")
LEASES: Kind = ("coordination.k8s.io", "leases", "ns")
ROLE = [
    {
        "apiGroups": ["apps"],
        "resources": ["deployments/scale"],
        "resourceNames": ["drafter"],
        "verbs": ["get", "patch"],
    },
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["ratio"],
        "verbs": ["get", "update", "delete"],
    },
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
]


def deployment(replicas: int) -> Object:
    return {
        "metadata": {"name": "drafter", "annotations": {"kept": "yes"}},
        "spec": {"replicas": replicas, "paused": True},
    }


@asynccontextmanager
async def candidates(cluster: ClusterSettings, clock: Clock) -> AsyncIterator[tuple[Leadership, Leadership]]:
    async with connect(cluster) as api:
        one, other = (Leadership(api, ("ns", "ratio"), name, 15.0, clock) for name in ("one", "other"))
        yield one, other


async def test_the_first_leads_and_its_term_goes_on(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    clock = Clock()
    async with candidates(cluster, clock) as (one, other):
        first = await one.hold()
        assert first is not None
        assert (first.number, first.ends) == (1, 15.0)
        assert await other.hold() is None
        clock.now = 10.0
        renewed = await one.hold()
        assert renewed is not None
        assert (renewed.number, renewed.ends) == (1, 25.0)
    (lease,), _ = api.store.collection(LEASES)
    assert lease["spec"]["holderIdentity"] == "one"
    assert len(lease["spec"]["renewTime"].partition(".")[2]) >= len("000001+00:00"), "a MicroTime has six digits"


async def test_a_silent_leader_is_replaced_under_a_higher_term(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    clock = Clock()
    async with candidates(cluster, clock) as (one, other):
        await one.hold()
        assert await other.hold() is None
        clock.now = 14.0
        await one.hold()
        assert await other.hold() is None
        clock.now = 28.0
        assert await other.hold() is None, "a renewal begins the wait anew"
        clock.now = 30.0
        taken = await other.hold()
        assert taken is not None
        assert taken.number == 2
        assert await one.hold() is None


async def test_of_two_that_take_it_at_once_one_leads(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    async with candidates(cluster, Clock()) as pair:
        terms = await asyncio.gather(*(each.hold() for each in pair))
        assert sum(term is not None for term in terms) == 1


async def test_a_lease_given_back_is_free_at_once(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    async with candidates(cluster, Clock()) as (one, other):
        await one.hold()
        await other.release()
        assert await other.hold() is None
        await one.release()
        taken = await other.hold()
        assert taken is not None
        assert taken.number == 2


async def test_only_the_replicas_are_written(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    api.store.create(DEPLOYMENTS, deployment(2))
    async with connect(cluster) as client:
        scale = DeploymentScale(client, "ns", "drafter")
        found = await scale.read()
        assert found.replicas == 2
        assert await scale.write(5, found.version)
        assert not await scale.write(7, found.version), "it has moved since it was read"
        assert await scale.read() == Scale(5, api.store.get(DEPLOYMENTS, "drafter")["metadata"]["resourceVersion"])
    kept = api.store.get(DEPLOYMENTS, "drafter")
    assert kept["spec"] == {"replicas": 5, "paused": True}
    assert kept["metadata"]["annotations"] == {"kept": "yes"}


@pytest.fixture
def settings(cluster: ClusterSettings) -> RatioSettings:
    return RatioSettings(
        deployment="drafter",
        metrics=MetricsSettings(prometheus="http://127.0.0.1:1", timeout=0.5),
        interval=0.05,
        cluster=cluster,
        lease=LeaseSettings(name="ratio", duration=3.0),
        scaling=ScalingSettings(up_seconds=0.0, down_seconds=0.0),
    )


@asynccontextmanager
async def controlling(settings: RatioSettings) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop))
    try:
        yield task
    finally:
        stop.set()
        await task


async def test_the_drafters_follow_the_verifiers(
    api: FakeKubernetes, settings: RatioSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = replace(SNAPSHOT, verifiers=20)

    def read(_: Any) -> MetricsSnapshot:
        return snapshot

    monkeypatch.setattr("specdec.serving.telemetry.readers.Prometheus.read", read)
    api.rules = ROLE
    api.store.create(DEPLOYMENTS, deployment(2))

    def replicas() -> int:
        return int(api.store.get(DEPLOYMENTS, "drafter")["spec"]["replicas"])

    async with controlling(settings):
        await until(lambda: replicas() == 10)
        snapshot = replace(SNAPSHOT, verifiers=4)
        await until(lambda: replicas() == 2)
        api.down = True
        snapshot = replace(SNAPSHOT, verifiers=20)
        await asyncio.sleep(0.2)
        assert replicas() == 2
        api.down = False
        await until(lambda: replicas() == 10)
    (lease,), _ = api.store.collection(LEASES)
    assert lease["spec"]["holderIdentity"] == "", "it is given back at the end"
    (owner,) = lease["metadata"]["ownerReferences"]
    assert owner["uid"] == api.store.get(DEPLOYMENTS, "drafter")["metadata"]["uid"], "it goes with the drafters"
    assert (owner["apiVersion"], owner["kind"], owner["name"]) == ("apps/v1", "Deployment", "drafter")
    assert {request.resource for request in api.requests} == {"deployments/scale", "leases"}
    assert {request.verb for request in api.requests} == {"get", "patch", "create", "update"}


async def test_a_lease_of_an_earlier_release_gets_an_owner_and_keeps_its_term(
    api: FakeKubernetes, cluster: ClusterSettings
) -> None:
    async with connect(cluster) as client:
        drafters = DeploymentScale(client, "ns", "drafter")
        old = Leadership(client, ("ns", "ratio"), "old", 15.0)
        new = Leadership(client, ("ns", "ratio"), "new", 15.0, owner=drafters.owner)
        assert await old.hold() is not None
        await old.release()
        assert await new.hold() is not None
        assert "ownerReferences" not in api.store.get(LEASES, "ratio")["metadata"], "there are no drafters to go with"
        api.store.create(DEPLOYMENTS, deployment(1))
        renewed = await new.hold()
    lease = api.store.get(LEASES, "ratio")
    assert renewed is not None
    assert renewed.number == lease["spec"]["leaseTransitions"] == 2
    assert [each["name"] for each in lease["metadata"]["ownerReferences"]] == ["drafter"]


async def test_where_it_may_not_name_an_owner_it_leads_without(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    async with connect(cluster) as client:

        async def forbidden() -> object:
            raise client_module.ApiException(status=403, reason="Forbidden")

        lead = Leadership(client, ("ns", "ratio"), "one", 15.0, owner=forbidden)
        with pytest.raises(client_module.ApiException):
            await lead.hold()
        assert await lead.hold() is not None
    assert "ownerReferences" not in api.store.get(LEASES, "ratio")["metadata"]


async def test_of_two_controllers_one_acts_and_the_other_takes_over(
    api: FakeKubernetes, settings: RatioSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.serving.telemetry.readers.Prometheus.read", lambda _: replace(SNAPSHOT, verifiers=20))
    api.store.create(DEPLOYMENTS, deployment(2))
    async with AsyncExitStack() as second:
        async with controlling(settings):
            await until(lambda: api.store.get(DEPLOYMENTS, "drafter")["spec"]["replicas"] == 10)
            await second.enter_async_context(controlling(settings))
        api.store.update(DEPLOYMENTS, "drafter", lambda current: current | {"spec": {"replicas": 3}})
        await until(lambda: api.store.get(DEPLOYMENTS, "drafter")["spec"]["replicas"] == 10)
    patches = [request for request in api.requests if request.verb == "patch"]
    assert patches == [Request("patch", "apps", "deployments/scale", "drafter")] * 2
