"""A namespace of the cluster of KUBECONFIG, if SPECDEC_CLUSTER is set. `make cluster-test` sets it."""

import json
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fits import OLDER, over
from tests.cluster.images import LOADED, load_command
from tests.helm.engine import CHART
from tests.kubernetes.older_chart import older_chart

LEAST = 30
"""Minor version of Kubernetes 1 that the chart requires."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the namespace to the report of a failed test."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(cluster, Cluster):
        report.sections.append(("cluster", cluster.state()))
    return report


@pytest.fixture(scope="session")
def registry() -> str:
    """Return the registry from which the nodes pull the images, or "" if they have them."""
    return os.environ.get("SPECDEC_CLUSTER_REGISTRY", "")


@pytest.fixture(scope="session")
def version(registry: str) -> int:
    """Return the minor version of a cluster that is reachable and has the images."""
    if not os.environ.get("SPECDEC_CLUSTER"):
        pytest.skip("SPECDEC_CLUSTER is not set; `make cluster-test` sets it")
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on PATH")
    asked = subprocess.run(("kubectl", "version", "--output=json"), capture_output=True, text=True, timeout=60)
    if asked.returncode:
        pytest.skip(f"KUBECONFIG names no cluster that answers: {asked.stderr.strip()}")
    if command := os.environ.get("SPECDEC_CLUSTER_LOAD"):
        for image in LOADED:
            subprocess.run(load_command(command, image, registry), shell=True, check=True, timeout=900)
    return int(json.loads(asked.stdout)["serverVersion"]["minor"].rstrip("+"))


@pytest.fixture(scope="session")
def chart(version: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the chart, rewritten for the cluster's version if needed."""
    return CHART if version >= LEAST else older_chart(tmp_path_factory.mktemp("older"))


@pytest.fixture(scope="session")
def needed(version: int, registry: str) -> dict[str, object]:
    """Return the values that this cluster needs in every install."""
    slices = Cluster("default").objects("endpointslices", "--selector", "kubernetes.io/service-name=kubernetes")
    ports = {443, 6443} | {port["port"] for each in slices for port in each["ports"]}
    values = over({"global": {"imageRegistry": registry}}, {"networkPolicy": {"apiServerPorts": sorted(ports)}})
    return values if version >= LEAST else over(values, OLDER)


@pytest.fixture(scope="module")
def cluster(chart: Path, registry: str, needed: dict[str, object], request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Create a namespace with a store, and delete it at the end."""
    module = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    made = Cluster(f"specdec-{module}-{os.getpid()}", chart, registry, needed)
    try:
        made.create()
        made.create_store()
        yield made
    finally:
        made.delete()


@pytest.fixture
def vacant(cluster: Cluster) -> Iterator[Cluster]:
    """Remove the test's release at the end, so that no test upgrades what another has scaled."""
    yield cluster
    cluster.uninstall()
