"""The rendered Roles allow the requests of gateways and of the ratio controller, and no others."""

from contextlib import aclosing
from typing import Any

import pytest

from gateway.discovery.cluster import ClusterSettings, connect
from gateway.discovery.sources import GatewayDiscoverySettings, source_of
from gateway.ratio_controller.controller import DeploymentScale
from gateway.ratio_controller.lease import Leadership
from tests.fake_kubernetes import FakeKubernetes
from tests.fake_kubernetes.access import Request, allowed
from tests.fake_kubernetes.slices import SLICES, pod, slice_of
from tests.fake_kubernetes.store import Kind
from tests.helm.engine import Manifest
from tests.helm.objects import config, named

DEPLOYMENTS: Kind = ("apps", "deployments", "ns")
DRAFTER, VERIFIER = "prod-specdec-drafter", "prod-specdec-verifier"


def _rules(objects: list[Manifest], component: str) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = named(objects, "Role", component)["rules"]
    return rules


async def test_a_gateway_finds_its_verifiers(
    full: list[Manifest], api: FakeKubernetes, cluster: ClusterSettings
) -> None:
    api.rules = _rules(full, "gateway")
    settings = GatewayDiscoverySettings.model_validate(config(full, "gateway")["discovery"])
    api.store.create(SLICES, slice_of("ours", pod(1), service=settings.names[0]))
    api.store.create(SLICES, slice_of("theirs", pod(2), service=f"{DRAFTER}-headless"))
    async with aclosing(source_of(settings, (), cluster).snapshots()) as snapshots:
        found = await anext(snapshots)
    assert [endpoint.address for endpoint in found] == ["10.0.0.1:50053"]


async def test_the_controller_leads_and_scales_the_drafters(
    full: list[Manifest], api: FakeKubernetes, cluster: ClusterSettings
) -> None:
    api.rules = _rules(full, "ratio-controller")
    settings = config(full, "ratio-controller")
    api.store.create(DEPLOYMENTS, {"metadata": {"name": DRAFTER}, "spec": {"replicas": 1}})
    async with connect(cluster) as client:
        lead = Leadership(client, ("ns", settings["lease"]["name"]), "one", settings["lease"]["duration"])
        assert await lead.hold()
        assert await lead.hold()
        drafters = DeploymentScale(client, "ns", settings["deployment"])
        assert await drafters.write(3, (await drafters.read()).version)
    assert api.store.get(DEPLOYMENTS, DRAFTER)["spec"]["replicas"] == 3


async def test_the_controller_cannot_scale_verifiers(
    full: list[Manifest], api: FakeKubernetes, cluster: ClusterSettings
) -> None:
    api.rules = _rules(full, "ratio-controller")
    api.store.create(DEPLOYMENTS, {"metadata": {"name": VERIFIER}, "spec": {"replicas": 1}})
    async with connect(cluster) as client:
        with pytest.raises(Exception, match="Forbidden"):
            await DeploymentScale(client, "ns", VERIFIER).read()


@pytest.mark.parametrize(
    "request_",
    [
        Request("list", "", "pods", ""),
        Request("get", "", "secrets", "redis-password"),
        Request("patch", "apps", "deployments", DRAFTER),
        Request("patch", "apps", "deployments/scale", VERIFIER),
        Request("update", "coordination.k8s.io", "leases", "somebody-else"),
        Request("delete", "discovery.k8s.io", "endpointslices", "ours"),
    ],
    ids=lambda request: f"{request.verb}-{request.resource}",
)
def test_nobody_may(full: list[Manifest], request_: Request) -> None:
    assert not any(allowed(_rules(full, component), request_) for component in ("gateway", "ratio-controller"))
