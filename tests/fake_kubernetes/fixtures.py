"""A pytest plugin: a fake API server for each test, and the settings with which the gateway reaches it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.discovery.cluster import ClusterSettings
from tests.fake_kubernetes.server import FakeKubernetes


@pytest.fixture
def api() -> Iterator[FakeKubernetes]:
    """A server that allows everything and fails on request."""
    with FakeKubernetes() as running:
        yield running


@pytest.fixture
def cluster(api: FakeKubernetes, tmp_path: Path) -> ClusterSettings:
    """Settings that lead to `api`."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(api.kubeconfig()))
    return ClusterSettings(kubeconfig=path, namespace="ns", timeout=1.0)
