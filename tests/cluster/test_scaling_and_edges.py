"""The autoscaler, the ratio controller and the network policies work in a cluster as the chart configures them."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cluster.cluster import PREFIX, Cluster, wait
from tests.cluster.fits import BY_CPU, by_ratio

pytestmark = pytest.mark.timeout(1800)
CLOSED = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "closed"},
    "spec": {"podSelector": {}, "policyTypes": ["Egress"]},
}


def test_an_autoscaler_reads_its_metric(vacant: Cluster) -> None:
    try:
        vacant.kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes")
    except subprocess.CalledProcessError:
        pytest.skip("the cluster has no metrics of pods")
    vacant.install("default", **BY_CPU)

    def reads() -> bool:
        (found,) = vacant.objects("horizontalpodautoscalers")
        conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", [])}
        return conditions.get("ScalingActive") == "True"

    wait(reads)


def test_a_ratio_controller_owns_the_number_of_drafters(vacant: Cluster) -> None:
    vacant.install("ratio-controller", **by_ratio(os.environ.get("SPECDEC_CLUSTER_PROMETHEUS", "")))
    wait(lambda: any(each["spec"].get("holderIdentity") for each in vacant.objects("leases")))
    drafters = ("get", "deployment", f"{PREFIX}-drafter", "--output", "jsonpath={.spec.replicas}")
    vacant.kubectl("scale", f"deployment/{PREFIX}-drafter", "--replicas=1")
    with vacant.traffic() as report:
        wait(lambda: vacant.kubectl(*drafters) in ("2", "3"))
    assert report["failed"] == []


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[Cluster]:
    """Another namespace."""
    other = replace(cluster, namespace=f"{cluster.namespace}-other")
    try:
        other.create()
        yield other
    finally:
        other.delete()


def test_only_the_edges_of_a_tier_are_open_where_policies_are_enforced(vacant: Cluster, elsewhere: Cluster) -> None:
    store = f"redis.{vacant.namespace}.svc"
    assert elsewhere.edge_is("open", "before", store, 6379)
    elsewhere.apply(CLOSED)
    if not elsewhere.edge_is("closed", "enforced", store, 6379):
        pytest.skip("the cluster's network enforces no NetworkPolicy")
    elsewhere.kubectl("delete", "networkpolicy", "closed")
    vacant.install("default")
    gateway, verifier = (f"{PREFIX}-{tier}.{vacant.namespace}.svc" for tier in ("gateway", "verifier"))
    assert vacant.edge_is("open", "caller", gateway, 8000)
    assert vacant.edge_is("closed", "stranger", verifier, 50053)
    assert elsewhere.edge_is("open", "unrestricted", store, 6379)
    assert elsewhere.edge_is("closed", "outsider", gateway, 8000)
    assert "the same with" in vacant.test()
