"""What is given to a cluster is valid, as is seen without one: pods of the tests, and the values of installs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.cluster.cluster import PREFIX, RELEASE, Cluster, store
from tests.cluster.fits import BY_CPU, FITTING, SMALL, by_ratio
from tests.helm.cases import values_of
from tests.helm.engine import CHART, find_helm, manifests
from tests.helm.objects import TIERS, of_kind


def test_the_pods_and_the_store_are_valid(tmp_path: Path) -> None:
    pod = Cluster("namespace", tmp_path).pod("traffic", "python", "-c", "pass", GATEWAY="http://gateway")
    for each in (pod, *store()):
        kubernetes_validate.validate(each, "1.37", strict=True)


@pytest.mark.parametrize(
    ("case", "over"),
    [*((case, {}) for case in FITTING), ("default", BY_CPU), ("ratio-controller", by_ratio("http://prometheus:9090"))],
)
def test_a_file_is_rendered_with_the_values_of_the_tests(case: str, over: Mapping[str, Any]) -> None:
    """Every tier keeps its name, by which the tests ask for its deployment."""
    helm = find_helm()
    if helm is None:
        pytest.skip("neither helm-python-sdk nor a helm on PATH")
    objects = manifests(helm.render(CHART, _over(_over(values_of(case), SMALL), over), RELEASE))
    names = {each["metadata"]["name"] for each in of_kind(objects, "Deployment")}
    wanted = TIERS[1:] if case == "plain" else TIERS
    assert {f"{PREFIX}-{tier}" for tier in wanted} <= names


def _over(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values with others over them, as Helm reads several files."""
    merged = dict(values)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _over(merged[key], value) if both else value
    return merged
