"""A namespace of the cluster that KUBECONFIG names, where SPECDEC_CLUSTER is set; `make cluster-test` sets it."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from images.__main__ import IMAGES
from tests.cluster.cluster import Cluster, store

LOADED = tuple(IMAGES[name].name for name in ("gateway", "drafter", "verifier", "valkey"))


@pytest.fixture(scope="session")
def reachable() -> None:
    """The cluster answers, and has the images."""
    if not os.environ.get("SPECDEC_CLUSTER"):
        pytest.skip("SPECDEC_CLUSTER is not set; `make cluster-test` sets it")
    if missing := [tool for tool in ("kubectl", "helm") if shutil.which(tool) is None]:
        pytest.skip(f"no {' and no '.join(missing)} on PATH")
    if subprocess.run(("kubectl", "version"), capture_output=True, timeout=60).returncode:
        pytest.skip("KUBECONFIG names no cluster that answers")
    if command := os.environ.get("SPECDEC_CLUSTER_LOAD"):
        for image in LOADED:
            subprocess.run(command.replace("IMAGE", shlex.quote(image)), shell=True, check=True, timeout=900)


@pytest.fixture(scope="module")
def cluster(
    reachable: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A new namespace with a store in it; it is deleted at the end."""
    namespace = (
        f"specdec-{request.module.__name__.rpartition('.')[2].removeprefix('test_').replace('_', '-')}-{os.getpid()}"
    )
    made = Cluster(namespace, tmp_path_factory.mktemp("values"))
    made.kubectl("create", "namespace", namespace)
    try:
        made.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        made.apply(*store())
        yield made
    finally:
        made.kubectl("delete", "namespace", namespace, "--wait=false")
