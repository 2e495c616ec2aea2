"""The ratio controller with its own account's token: one replica leads, and the API server fences its writes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import Self

import pytest

from gateway.discovery.cluster import ClusterSettings, connect
from gateway.ratio_controller.app import serve
from gateway.ratio_controller.config import RatioSettings
from gateway.ratio_controller.controller import DeploymentScale
from gateway.ratio_controller.lease import Leadership
from tests.kubernetes.api import Api, ApiRefused, Object
from tests.kubernetes.arrange import ClusterAs, Installed
from tests.support.clock import Clock
from tests.support.gateway_fakes import until
from tests.support.metrics_fakes import SNAPSHOT


@pytest.fixture
def ours(installed: Installed, cluster: ClusterAs) -> ClusterSettings:
    """The controller's client of the API server."""
    return cluster(installed.token("ratio-controller"))


@pytest.fixture
def settings(installed: Installed, ours: ClusterSettings) -> RatioSettings:
    """The chart's settings of the controller, with short intervals."""
    said = RatioSettings.model_validate(installed.config("ratio-controller"))
    hasty = said.scaling.model_copy(update={"up_seconds": 0.0, "down_seconds": 0.0})
    return said.model_copy(update={"cluster": ours, "scaling": hasty, "interval": 0.1, "http": "127.0.0.1:0"})


class Drafters:
    """The drafters' Deployment and the Lease on the API server."""

    def __init__(self, admin: Api, namespace: str, settings: RatioSettings) -> None:
        self._admin = admin
        self._path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{settings.deployment}"
        self._lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{settings.lease.name}"

    def deployment(self) -> Object:
        """Return the whole Deployment."""
        return self._admin.ask("GET", self._path)

    def lease(self) -> Object:
        """Return the Lease's spec."""
        said: Object = self._admin.ask("GET", self._lease)["spec"]
        return said

    def owners(self) -> list[Object]:
        """Return the owner references of the Lease."""
        named: list[Object] = self._admin.ask("GET", self._lease)["metadata"]["ownerReferences"]
        return named

    def scale(self, replicas: int) -> None:
        """Scale the Deployment as another user."""
        self._admin.ask("PATCH", f"{self._path}/scale", {"spec": {"replicas": replicas}})


@pytest.fixture
def drafters(admin: Api, namespace: str, settings: RatioSettings) -> Drafters:
    return Drafters(admin, namespace, settings)


@asynccontextmanager
async def controlling(settings: RatioSettings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def test_leadership_changes_hands_under_rising_terms(
    ours: ClusterSettings, namespace: str, settings: RatioSettings, drafters: Drafters
) -> None:
    clock = Clock()
    place = (namespace, settings.lease.name)
    async with connect(ours) as api:
        one, other = (Leadership(api, place, name, 15.0, clock) for name in ("one", "other"))
        terms = [await one.hold(), await one.hold(), await other.hold()]
        assert [term and term.number for term in terms] == [1, 1, None]
        clock.now = 20.0
        assert await other.hold() is not None, "the leader was silent for longer than it may"
        assert await one.hold() is None
        await other.release()
        taken = await one.hold()
        assert taken is not None
        assert taken.number == 3
    assert (drafters.lease()["holderIdentity"], drafters.lease()["leaseTransitions"]) == ("one", 3)


async def test_the_lease_is_deleted_with_the_drafters(
    ours: ClusterSettings, namespace: str, settings: RatioSettings, drafters: Drafters
) -> None:
    async with connect(ours) as api:
        owner = DeploymentScale(api, namespace, settings.deployment).owner
        assert await Leadership(api, (namespace, settings.lease.name), "one", 15.0, owner=owner).hold() is not None
    assert [each["uid"] for each in drafters.owners()] == [drafters.deployment()["metadata"]["uid"]]


async def test_a_lease_is_written_on_a_whole_second_too(
    ours: ClusterSettings,
    namespace: str,
    settings: RatioSettings,
    admin: Api,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Whole(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr("gateway.ratio_controller.lease.datetime", Whole)
    async with connect(ours) as api:
        lead = Leadership(api, (namespace, settings.lease.name), "one", 15.0)
        assert await lead.hold() is not None
        assert await lead.hold() is not None
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    careless = {"metadata": {"name": "careless"}, "spec": {"renewTime": Whole.now(UTC).isoformat()}}
    with pytest.raises(ApiRefused, match="400 BadRequest"):
        admin.ask("POST", leases, careless)


async def test_of_many_that_take_it_at_once_one_leads(
    ours: ClusterSettings, namespace: str, settings: RatioSettings
) -> None:
    async with connect(ours) as api:
        candidates = [Leadership(api, (namespace, settings.lease.name), str(each), 15.0) for each in range(8)]
        for _ in range(3):
            terms = await asyncio.gather(*(candidate.hold() for candidate in candidates))
            assert sum(term is not None for term in terms) == 1


async def test_a_write_is_refused_when_anything_was_changed_since_the_read(
    ours: ClusterSettings, namespace: str, settings: RatioSettings, drafters: Drafters
) -> None:
    before = drafters.deployment()
    async with connect(ours) as api:
        scale = DeploymentScale(api, namespace, settings.deployment)
        found = await scale.read()
        assert await scale.write(5, found.version)
        assert not await scale.write(7, found.version), "it has moved since it was read"
        assert (await scale.read()).replicas == 5
        stale = await scale.read()
        drafters.scale(2)
        assert not await scale.write(7, stale.version)
    after = drafters.deployment()
    assert after["spec"] == before["spec"] | {"replicas": 2}
    assert after["metadata"]["labels"] == before["metadata"]["labels"]


async def test_of_two_controllers_one_acts_and_the_other_takes_over(
    settings: RatioSettings, drafters: Drafters, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = replace(SNAPSHOT, verifiers=20)
    monkeypatch.setattr("gateway.ratio_controller.app.snapshot_reader", lambda _: lambda: _reading(snapshot))

    def replicas() -> int:
        return int(drafters.deployment()["spec"]["replicas"])

    async with AsyncExitStack() as second:
        async with controlling(settings):
            await until(lambda: replicas() == 10)
            first = drafters.lease()["holderIdentity"]
            await second.enter_async_context(controlling(settings))
        drafters.scale(3)
        await until(lambda: replicas() == 10)
        assert drafters.lease()["holderIdentity"] not in {first, ""}
    assert drafters.lease()["holderIdentity"] == "", "it is given back at the end"


async def _reading(snapshot: object) -> object:
    return snapshot
