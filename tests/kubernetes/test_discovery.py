"""A gateway with its own account's token keeps track of its verifiers through failures of the API servers."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.discovery.cluster import ClusterSettings
from gateway.discovery.sources import GatewayDiscoverySettings, source_of
from specdec.serving.discovery import Source
from tests.chaos.proxy import Proxy
from tests.fake_kubernetes.slices import pod, slice_of
from tests.integration.kubernetes.follower import follow
from tests.kubernetes.api import Api, Object
from tests.kubernetes.arrange import ClusterAs, Installed
from tests.kubernetes.control_plane import ApiServer, ControlPlane
from tests.support.gateway_fakes import until


class Slices:
    """EndpointSlices, written as the control plane's controllers write them."""

    def __init__(self, admin: Api, namespace: str, service: str) -> None:
        self._admin = admin
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._service = service

    def create(self, name: str, *pods: Object, service: str = "") -> None:
        """Create a slice."""
        self._admin.ask("POST", self._path, slice_of(name, *pods, service=service or self._service))

    def update(self, name: str, *pods: Object) -> None:
        """Replace the pods of a slice."""
        self._admin.ask("PATCH", f"{self._path}/{name}", {"endpoints": list(pods)})

    def delete(self, name: str) -> None:
        """Delete a slice."""
        self._admin.ask("DELETE", f"{self._path}/{name}")


@pytest.fixture
def discovery(installed: Installed) -> GatewayDiscoverySettings:
    """Discovery with the chart's settings, and watches so short that a test can outlast them."""
    said = GatewayDiscoverySettings.model_validate(installed.config("gateway")["discovery"])
    return said.model_copy(update={"watch": 1.0})


@pytest.fixture
def slices(admin: Api, namespace: str, discovery: GatewayDiscoverySettings) -> Slices:
    return Slices(admin, namespace, discovery.names[0])


def source(discovery: GatewayDiscoverySettings, cluster: ClusterSettings) -> Source:
    return source_of(discovery, (), cluster)


def noted(logs: Sequence[Mapping[str, Any]], word: str) -> bool:
    """Whether the log reports a restarted watch for a reason that contains the word."""
    return any(word in log.get("error", "") for log in logs)


async def test_pods_come_drain_and_go(
    installed: Installed, cluster: ClusterAs, discovery: GatewayDiscoverySettings, slices: Slices
) -> None:
    slices.create("a", pod(1))
    slices.create("not-ours", pod(9), service="prod-specdec-drafter-headless")
    with capture_logs() as logs:
        async with follow(source(discovery, cluster(installed.token("gateway")))) as follower:
            await follower.until("1")
            slices.create("b", pod(2), pod(3, ready=False, serving=False))
            await follower.until("1", "2")
            slices.update("a", pod(1, ready=False, terminating=True))
            await follower.until("-1", "2")
            slices.delete("a")
            await follower.until("2")
    assert not noted(logs, ""), "no watch broke"


async def test_a_version_that_is_compacted_away_is_answered_by_another_list(
    installed: Installed,
    admin: Api,
    plane: ControlPlane,
    unbuffered: ApiServer,
    cluster: ClusterAs,
    discovery: GatewayDiscoverySettings,
    slices: Slices,
) -> None:
    slices.create("a", pod(1))
    with capture_logs() as logs:
        async with follow(source(discovery, cluster(installed.token("gateway"), unbuffered))) as follower:
            await follower.until("1")
            for name in ("one", "other"):  # more than one version later, all previous versions are gone
                admin.ask("POST", f"/api/v1/namespaces/{installed.namespace}/configmaps", {"metadata": {"name": name}})
            plane.compact()
            await until(lambda: noted(logs, "Expired"))
            slices.update("a", pod(2))
            await follower.until("2")


async def test_while_the_api_server_is_away_no_peer_is_lost_and_none_outlives_it(
    installed: Installed, plane: ControlPlane, cluster: ClusterAs, discovery: GatewayDiscoverySettings, slices: Slices
) -> None:
    slices.create("a", pod(1))
    slices.create("b", pod(2))
    second = plane.serve()
    async with follow(source(discovery, cluster(installed.token("gateway"), second))) as follower:
        await follower.until("1", "2")
        second.stop()
        slices.delete("a")
        slices.create("c", pod(3))
        plane.compact()
        await until(lambda: follower.source.age > 1.0)
        assert follower.hosts == ["1", "2"]
        second.start()
        await follower.until("2", "3")
    second.stop()


async def test_a_watch_that_became_a_black_hole_is_given_up(
    installed: Installed, server: ApiServer, cluster: ClusterAs, discovery: GatewayDiscoverySettings, slices: Slices
) -> None:
    slices.create("a", pod(1))
    with capture_logs() as logs:
        async with Proxy(server.address) as proxy:
            url = f"https://localhost:{proxy.address.rpartition(':')[2]}"
            async with follow(source(discovery, cluster(installed.token("gateway"), url=url))) as follower:
                await follower.until("1")
                proxy.freeze()
                slices.update("a", pod(2))
                await until(lambda: noted(logs, "TimeoutError"))
                proxy.thaw()
                await follower.until("2")


async def test_an_account_without_the_role_knows_nobody(
    installed: Installed, cluster: ClusterAs, discovery: GatewayDiscoverySettings, slices: Slices
) -> None:
    slices.create("a", pod(1))
    with capture_logs() as logs:
        async with follow(source(discovery, cluster(installed.token("verifier")))) as follower:
            await until(lambda: noted(logs, "403"))
            assert follower.latest is None
