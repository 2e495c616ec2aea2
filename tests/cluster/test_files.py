"""Each file of helm/ci that a plain cluster can run installs, passes `helm test --logs` and leaves nothing."""

import pytest

from tests.cluster.cluster import PREFIX, RELEASE, Cluster
from tests.cluster.fits import FITTING, WHY_NOT
from tests.helm.cases import CASES, values_of

pytestmark = pytest.mark.timeout(1800)
STAY = ("certificates", "test")
"""Components whose objects remain after an uninstall: Secrets of certificates, and the pod of the last test."""


def test_every_file_is_installed_or_has_a_reason() -> None:
    assert sorted([*FITTING, *WHY_NOT]) == CASES


@pytest.mark.parametrize("case", FITTING)
def test_a_file_serves_and_is_removed(cluster: Cluster, case: str) -> None:
    cluster.install(case)
    if values_of(case).get("tests") != {"enabled": False}:
        assert "the same with" in cluster.test()
    cluster.uninstall()
    kinds = "deployments,statefulsets,pods,services,configmaps,roles,rolebindings,leases,networkpolicies,secrets,jobs"
    left = cluster.objects(kinds, "--selector", f"app.kubernetes.io/instance={RELEASE}")
    assert [each["metadata"]["name"] for each in left if _component(each) not in STAY] == []
    cluster.kubectl("delete", "pod", f"{PREFIX}-test", "--ignore-not-found")


def _component(found: dict[str, dict[str, dict[str, str]]]) -> str:
    return found["metadata"]["labels"].get("app.kubernetes.io/component", "")
