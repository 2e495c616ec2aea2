"""A namespace of the cluster of KUBECONFIG, if SPECDEC_CLUSTER is set. `make cluster-test` sets it."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.__main__ import IMAGES
from tests.cluster.cluster import Cluster, store
from tests.helm.engine import CHART
from tests.kubernetes.older_chart import older_chart

LOADED = tuple(IMAGES[name].name for name in ("gateway", "drafter", "verifier", "valkey"))
LEAST = 30
"""Minor version of Kubernetes 1 that the chart requires."""


@pytest.fixture(scope="session")
def version() -> int:
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
            subprocess.run(command.replace("IMAGE", shlex.quote(image)), shell=True, check=True, timeout=900)
    return int(json.loads(asked.stdout)["serverVersion"]["minor"].rstrip("+"))


@pytest.fixture(scope="session")
def chart(version: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the chart, rewritten for the cluster's version if needed."""
    return CHART if version >= LEAST else older_chart(tmp_path_factory.mktemp("older"))


@pytest.fixture(scope="module")
def cluster(version: int, chart: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Create a namespace with a store, and delete it at the end."""
    namespace = (
        f"specdec-{request.module.__name__.rpartition('.')[2].removeprefix('test_').replace('_', '-')}-{os.getpid()}"
    )
    made = Cluster(namespace, chart, is_older=version < LEAST)
    made.kubectl("create", "namespace", namespace)
    try:
        made.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        made.apply(*store())
        yield made
    finally:
        made.kubectl("delete", "namespace", namespace, "--wait=false")
