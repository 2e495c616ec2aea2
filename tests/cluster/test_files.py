"""Each file of helm/ci that a plain cluster can run installs, passes `helm test --logs` and leaves nothing."""

from contextlib import suppress

import pytest

from tests.cluster.cluster import PREFIX, RELEASE, Cluster, wait
from tests.cluster.fits import FITTING, STORED, WHY_NOT
from tests.helm.cases import CASES, values_of

pytestmark = pytest.mark.timeout(2400)
KINDS = (
    "deployments,statefulsets,jobs,pods,services,endpointslices,configmaps,secrets,serviceaccounts,roles,rolebindings,leases,"
    "networkpolicies,poddisruptionbudgets,horizontalpodautoscalers,persistentvolumeclaims"
)
STAY = ("certificates", "test")
"""Components whose objects remain after an uninstall: Secrets of certificates, and the pod of the last test."""


def test_every_file_is_installed_or_has_a_reason() -> None:
    assert sorted([*FITTING, *WHY_NOT]) == CASES


@pytest.mark.parametrize("case", FITTING)
def test_a_file_serves_and_is_removed(vacant: Cluster, case: str) -> None:
    if case in STORED and not _has_storage(vacant):
        pytest.skip("the cluster has no default StorageClass")
    vacant.install(case)
    if values_of(case).get("tests") != {"enabled": False}:
        assert "the same with" in vacant.test()
    vacant.uninstall()
    with suppress(TimeoutError):
        wait(lambda: not _left(vacant))  # pods end, and the garbage collector removes what owned them
    assert _left(vacant) == []
    vacant.kubectl("delete", "pod", f"{PREFIX}-test", "--ignore-not-found")


def _left(cluster: Cluster) -> list[str]:
    """Return the names of a release's objects that should not be there."""
    found = [each["metadata"] for each in cluster.objects(KINDS, "--selector", f"app.kubernetes.io/instance={RELEASE}")]
    return [each["name"] for each in found if each["labels"].get("app.kubernetes.io/component", "") not in STAY]


def _has_storage(cluster: Cluster) -> bool:
    mark = "storageclass.kubernetes.io/is-default-class"
    classes = cluster.objects("storageclasses")
    return any(each["metadata"].get("annotations", {}).get(mark) == "true" for each in classes)
