"""A real API server, if SPECDEC_KUBE_APISERVER names one. `make kubernetes` builds it and runs these tests."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.discovery.cluster import ClusterSettings
from tests.kubernetes import worlds
from tests.kubernetes.api import Api
from tests.kubernetes.arrange import ClusterAs, Installed, define_operators, new_namespace
from tests.kubernetes.control_plane import ApiServer, ControlPlane
from tests.kubernetes.older_chart import older_chart, older_values
from tests.kubernetes.release import Release
from tests.kubernetes.worlds import World

BINARY = os.environ.get("SPECDEC_KUBE_APISERVER", "")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without API servers."""
    if not BINARY:
        pytest.skip("SPECDEC_KUBE_APISERVER names no kube-apiserver; `make kubernetes` builds one")
    with ControlPlane(Path(BINARY).absolute(), tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest.fixture(scope="session")
def server(plane: ControlPlane) -> ApiServer:
    """One API server with the usual settings of a cluster."""
    return plane.serve()


@pytest.fixture(scope="session")
def admin(server: ApiServer) -> Iterator[Api]:
    """A client with all rights, in a cluster where the operators' resources are defined."""
    with Api(server.url, server.admin, server.authority) as api:
        define_operators(api)
        yield api


@pytest.fixture
def namespace(admin: Api) -> str:
    """A new namespace. It remains until the control plane ends."""
    return new_namespace(admin)


@pytest.fixture(scope="session")
def unbuffered(plane: ControlPlane) -> ApiServer:
    """Another API server of the same cluster, which keeps no changes in memory and reads them from etcd."""
    return plane.serve("--watch-cache=false")


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, adapted to the API server."""
    return older_chart(tmp_path_factory.mktemp("chart"))


@pytest.fixture
def release(chart: Path, server: ApiServer, namespace: str) -> Iterator[Release]:
    """A release of the chart, not yet installed."""
    with closing(Release(chart, server.kubeconfig(server.admin, namespace), namespace)) as made:
        yield made


@pytest.fixture
def installed(release: Release, admin: Api, namespace: str) -> Installed:
    """The chart with a ratio controller, and the tokens of its accounts."""
    release.install(older_values("ratio-controller"))
    return Installed(admin, namespace)


@pytest.fixture
def cluster(server: ApiServer, namespace: str, tmp_path: Path) -> ClusterAs:
    """Return settings to reach an API server with a given token."""

    def settings(token: str, server: ApiServer = server, url: str = "") -> ClusterSettings:
        path = tmp_path / f"kubeconfig-{len(list(tmp_path.iterdir()))}"
        path.write_text(json.dumps(server.kubeconfig(token, namespace, url)))
        return ClusterSettings(kubeconfig=path, namespace=namespace, timeout=2.0)

    return settings


@pytest.fixture(params=["made_up", "real"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """An API server, real or fake."""
    if request.param == "made_up":
        with worlds.made_up() as world:
            yield world
    else:
        request.getfixturevalue("admin")
        with worlds.real(*(request.getfixturevalue(name) for name in ("plane", "server", "unbuffered"))) as world:
            yield world
