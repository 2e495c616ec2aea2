"""What tests ask of the API server before they begin."""

import itertools
import time
from collections.abc import Callable

import yaml

from gateway.discovery.cluster import ClusterSettings
from tests.helm.engine import RELEASE
from tests.kubernetes.api import Api, ApiRefused, Object
from tests.kubernetes.operators import definitions

ClusterAs = Callable[..., ClusterSettings]
"""Settings for the way to an API server with the token given."""

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SECONDS = 30
_numbers = itertools.count(1)


def define_operators(admin: Api) -> None:
    """Let the server know the operators' resources, and wait until it serves them."""
    for definition in definitions():
        admin.ask("POST", _CRDS, definition)
    for definition in definitions():
        _wait_until_served(admin, definition["spec"])


def new_namespace(admin: Api) -> str:
    """One that nobody else uses; nothing removes it but the end of the control plane."""
    name = f"ns-{next(_numbers)}"
    admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


def token_of(admin: Api, namespace: str, account: str) -> str:
    """A token of a ServiceAccount, as its pods would get it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = admin.ask("POST", path, body)["status"]["token"]
    return token


class Installed:
    """The chart in a namespace, as the API server has it."""

    def __init__(self, admin: Api, namespace: str) -> None:
        self._admin = admin
        self.namespace = namespace

    def token(self, component: str) -> str:
        """Of the ServiceAccount of a component."""
        return token_of(self._admin, self.namespace, f"{RELEASE}-specdec-{component}")

    def config(self, component: str) -> Object:
        """What a component's process reads."""
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
