"""An API server that fails on request, and the unmodified client in front of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.discovery.cluster import ClusterSettings
from tests.fake_kubernetes import FakeKubernetes


@pytest.fixture
def api() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as running:
        yield running


@pytest.fixture
def cluster(api: FakeKubernetes, tmp_path: Path) -> ClusterSettings:
    """The way to `api`."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(api.kubeconfig()))
    return ClusterSettings(kubeconfig=path, namespace="ns", timeout=1.0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder opens sockets."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
