"""The autoscaler, the ratio controller and the network policies work in a cluster as the chart configures them."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cluster.cluster import PREFIX, Cluster, wait
from tests.cluster.fits import BY_CPU, by_ratio

pytestmark = pytest.mark.timeout(1800)


def test_an_autoscaler_reads_its_metric(cluster: Cluster) -> None:
    try:
        cluster.kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes")
    except subprocess.CalledProcessError:
        pytest.skip("the cluster has no metrics of pods")
    cluster.install("default", **BY_CPU)

    def reads() -> bool:
        (found,) = cluster.objects("horizontalpodautoscalers")
        conditions = {each["type"]: each["status"] for each in found["status"].get("conditions", [])}
        return conditions.get("ScalingActive") == "True"

    wait(reads)


def test_a_ratio_controller_owns_the_number_of_drafters(cluster: Cluster) -> None:
    cluster.install("ratio-controller", **by_ratio(os.environ.get("SPECDEC_CLUSTER_PROMETHEUS", "")))
    wait(lambda: any(each["spec"].get("holderIdentity") for each in cluster.objects("leases")))
    drafters = ("get", "deployment", f"{PREFIX}-drafter", "--output", "jsonpath={.spec.replicas}")
    cluster.kubectl("scale", f"deployment/{PREFIX}-drafter", "--replicas=1")
    with cluster.traffic() as report:
        wait(lambda: cluster.kubectl(*drafters) in ("2", "3"))
    assert report["failed"] == []


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[Cluster]:
    """Another namespace."""
    other = replace(cluster, namespace=f"{cluster.namespace}-other")
    other.kubectl("create", "namespace", other.namespace)
    try:
        yield other
    finally:
        other.kubectl("delete", "namespace", other.namespace, "--wait=false")


def test_only_the_edges_of_a_tier_are_open_where_policies_are_enforced(cluster: Cluster, elsewhere: Cluster) -> None:
    store = f"redis.{cluster.namespace}.svc"
    denied = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed"},
              "spec": {"podSelector": {}, "policyTypes": ["Egress"]}}  # fmt: skip
    assert elsewhere.reaches("before", store, 6379)
    elsewhere.apply(denied)
    if elsewhere.reaches("closed", store, 6379):
        pytest.skip("the cluster's network enforces no NetworkPolicy")
    elsewhere.kubectl("delete", "networkpolicy", "closed")
    cluster.install("default")
    gateway, verifier = (f"{PREFIX}-{tier}.{cluster.namespace}.svc" for tier in ("gateway", "verifier"))
    assert cluster.reaches("caller", gateway, 8000)
    assert not cluster.reaches("stranger", verifier, 50053)
    assert not elsewhere.reaches("outsider", gateway, 8000)
