"""Set-up of the API server for tests."""

import itertools
import time
from collections.abc import Callable

import yaml

from gateway.discovery.cluster import ClusterSettings
from tests.helm.engine import RELEASE
from tests.kubernetes.api import Api, ApiRefused, Object
from tests.kubernetes.operators import definitions

ClusterAs = Callable[..., ClusterSettings]
"""Return settings to reach an API server with the given token."""

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SECONDS = 30
_numbers = itertools.count(1)


def define_operators(admin: Api) -> None:
    """Define the operators' resources on the server and wait until it serves them."""
    for definition in definitions():
        admin.ask("POST", _CRDS, definition)
    for definition in definitions():
        _wait_until_served(admin, definition["spec"])


def new_namespace(admin: Api) -> str:
    """Create a namespace for one test. It remains until the control plane ends."""
    name = f"ns-{next(_numbers)}"
    admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


def token_of(admin: Api, namespace: str, account: str) -> str:
    """Return a token of a ServiceAccount, like the one in its pods."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = admin.ask("POST", path, body)["status"]["token"]
    return token


class Installed:
    """The chart installed in a namespace of the API server."""

    def __init__(self, admin: Api, namespace: str) -> None:
        self._admin = admin
        self.namespace = namespace

    def token(self, component: str) -> str:
        """Return a token of the ServiceAccount of a component."""
        return token_of(self._admin, self.namespace, f"{RELEASE}-specdec-{component}")

    def config(self, component: str) -> Object:
        """Return the configuration that a component's process reads."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{RELEASE}-specdec-{component}"
        loaded: Object = yaml.safe_load(self._admin.ask("GET", path)["data"]["config.yaml"])
        return loaded


def _wait_until_served(admin: Api, spec: Object) -> None:
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    deadline = time.monotonic() + _SECONDS
    while not _is_served(admin, path):
        assert time.monotonic() < deadline, f"{path} is not served"
        time.sleep(0.05)


def _is_served(admin: Api, path: str) -> bool:
    try:
        admin.ask("GET", path)
    except ApiRefused:
        return False
    return True
