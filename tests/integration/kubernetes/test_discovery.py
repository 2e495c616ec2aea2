"""The endpoints follow the EndpointSlices through failures of the API server and the network."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.discovery.cluster import ClusterSettings
from gateway.discovery.sources import GatewayDiscoverySettings, KubernetesSource
from specdec.errors import ConfigError
from specdec.serving.discovery import Endpoint
from tests.fake_kubernetes import FakeKubernetes
from tests.fake_kubernetes.access import Request
from tests.fake_kubernetes.slices import SERVICE, SLICES, pod, slice_of
from tests.integration.kubernetes.follower import Follower, follow
from tests.support.gateway_fakes import until


@asynccontextmanager
async def following(cluster: ClusterSettings, watch: float = 30.0) -> AsyncIterator[Follower]:
    settings = GatewayDiscoverySettings(kind="kubernetes", names=(SERVICE, "other"), watch=watch)
    async with follow(KubernetesSource(settings, cluster)) as follower:
        yield follower


async def test_pods_come_drain_and_go(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    api.store.create(SLICES, slice_of("a", pod(1)))
    api.store.create(SLICES, slice_of("not-ours", pod(9), service="somebody"))
    async with following(cluster) as follower:
        await follower.until("1")
        assert follower.latest == (Endpoint("10.0.0.1:50053", "uid-1"),)
        api.store.create(SLICES, slice_of("b", pod(2), pod(3, ready=False, serving=False), service="other"))
        await follower.until("1", "2")
        api.store.update(SLICES, "a", lambda _: slice_of("a", pod(1, ready=False, terminating=True)))
        await follower.until("-1", "2")
        api.store.delete(SLICES, "a")
        await follower.until("2")


async def test_a_pod_deleted_while_the_watch_was_broken_is_no_zombie(
    api: FakeKubernetes, cluster: ClusterSettings
) -> None:
    api.store.create(SLICES, slice_of("a", pod(1)))
    api.store.create(SLICES, slice_of("b", pod(2)))
    async with following(cluster) as follower:
        await follower.until("1", "2")
        api.down = True
        api.drop_watches()
        api.store.delete(SLICES, "a")
        api.store.compact()
        await asyncio.sleep(0.3)
        assert follower.hosts == ["1", "2"]
        api.down = False
        await follower.until("2")


async def test_a_version_that_is_too_old_is_answered_by_another_list(
    api: FakeKubernetes, cluster: ClusterSettings
) -> None:
    api.store.create(SLICES, slice_of("a", pod(1)))
    async with following(cluster) as follower:
        await follower.until("1")
        with api.store.changed:  # one step, so that compaction comes before the watch sees the change
            api.store.update(SLICES, "a", lambda _: slice_of("a", pod(2)))
            api.store.compact()
        await follower.until("2")


async def test_a_watch_that_became_a_black_hole_is_given_up(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    api.store.create(SLICES, slice_of("a", pod(1)))
    async with following(cluster, watch=1.0) as follower:
        await follower.until("1")
        await until(lambda: any(request.verb == "watch" for request in api.requests))
        api.swallow_watches()
        api.store.update(SLICES, "a", lambda _: slice_of("a", pod(2)))
        await follower.until("2")


async def test_when_the_api_is_away_nobody_is_forgotten_and_the_age_says_so(
    api: FakeKubernetes, cluster: ClusterSettings
) -> None:
    api.store.create(SLICES, slice_of("a", pod(1)))
    async with following(cluster) as follower:
        await follower.until("1")
        await until(lambda: follower.source.age < 0.3)
        api.down = True
        api.drop_watches()
        await until(lambda: follower.source.age > 0.6)
        assert follower.hosts == ["1"]
        api.down = False
        await until(lambda: follower.source.age < 0.3)


async def test_a_watch_in_good_order_is_resumed_without_another_list(
    api: FakeKubernetes, cluster: ClusterSettings
) -> None:
    api.store.create(SLICES, slice_of("a", pod(1)))
    async with following(cluster, watch=1.0) as follower:
        await until(lambda: [request.verb for request in api.requests].count("watch") == 2)
        api.store.update(SLICES, "a", lambda _: slice_of("a", pod(2)))
        await follower.until("2")
    assert [request.verb for request in api.requests].count("list") == 1


async def test_it_asks_for_nothing_but_its_endpointslices(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    api.rules = [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    ]
    api.store.create(SLICES, slice_of("a", pod(1)))
    async with following(cluster) as follower:
        await follower.until("1")
        api.store.update(SLICES, "a", lambda _: slice_of("a", pod(2)))
        await follower.until("2")
    assert set(api.requests) <= {Request(verb, *SLICES[:2], "") for verb in ("list", "watch")}


async def test_who_may_not_list_knows_nobody_until_he_may(api: FakeKubernetes, cluster: ClusterSettings) -> None:
    api.rules = []
    api.store.create(SLICES, slice_of("a", pod(1)))
    async with following(cluster) as follower:
        await until(lambda: len(api.requests) > 1)
        assert follower.latest is None
        api.rules = None
        await follower.until("1")


async def test_outside_a_pod_a_kubeconfig_is_needed() -> None:
    source = KubernetesSource(
        GatewayDiscoverySettings(kind="kubernetes", names=(SERVICE,), watch=30.0), ClusterSettings()
    )
    with pytest.raises(ConfigError, match="no way to the Kubernetes API"):
        await anext(source.snapshots())
