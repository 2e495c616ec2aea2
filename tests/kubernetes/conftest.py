"""A real API server, where SPECDEC_KUBE_APISERVER names one; `make kubernetes` builds it and runs what is here."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kubernetes.api import Api
from tests.kubernetes.arrange import define_operators, new_namespace
from tests.kubernetes.control_plane import ApiServer, ControlPlane
from tests.kubernetes.older_chart import older_chart
from tests.kubernetes.release import Release

BINARY = os.environ.get("SPECDEC_KUBE_APISERVER", "")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without API servers yet."""
    if not BINARY:
        pytest.skip("SPECDEC_KUBE_APISERVER names no kube-apiserver; `make kubernetes` builds one")
    with ControlPlane(Path(BINARY).absolute(), tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest.fixture(scope="session")
def server(plane: ControlPlane) -> ApiServer:
    """One API server as clusters run it."""
    return plane.serve()


@pytest.fixture(scope="session")
def admin(server: ApiServer) -> Iterator[Api]:
    """The one who may do everything, in a cluster whose operators' resources are defined."""
    with Api(server.url, server.admin, server.authority) as api:
        define_operators(api)
        yield api


@pytest.fixture
def namespace(admin: Api) -> str:
    """A new one; nothing removes it but the end of the control plane."""
    return new_namespace(admin)


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as the API server takes it."""
    return older_chart(tmp_path_factory.mktemp("chart"))


@pytest.fixture
def release(chart: Path, server: ApiServer, namespace: str) -> Iterator[Release]:
    """Nothing is installed yet."""
    with closing(Release(chart, server.kubeconfig(server.admin, namespace), namespace)) as made:
        yield made
