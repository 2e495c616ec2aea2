"""Real and fake API servers with one interface, for tests that compare their answers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice

import pytest

from tests.fake_kubernetes import FakeKubernetes
from tests.kubernetes.api import Api, ApiRefused, Object
from tests.kubernetes.arrange import new_namespace, token_of
from tests.kubernetes.control_plane import ApiServer, ControlPlane


@dataclass(frozen=True)
class World:
    """One API server, with the operations of its administrator."""

    api: Api
    unbuffered: Api
    """A server of the same cluster that keeps no changes in memory and reads them from etcd."""
    namespace: str
    compact: Callable[[], None]
    """Compact etcd, which drops all versions but the last."""
    limited: Callable[[list[Object]], Api]
    """Return a client with the rights of a Role. Call it last."""

    def path(self, group: str, plural: str, name: str = "") -> str:
        """Return the path of a collection or an object; the group includes its version."""
        root = "api" if group == "v1" else "apis"
        return f"/{root}/{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    @property
    def slices(self) -> str:
        """Return the path of slices, a resource that the tests watch."""
        return self.path("discovery.k8s.io/v1", "endpointslices")

    def version(self) -> str:
        """Return the current version of the slices."""
        return str(self.api.ask("GET", self.slices)["metadata"]["resourceVersion"])

    def events(self, count: int, version: str, **query: str) -> list[tuple[str, str]]:
        """Return kind and name of the first changes after a version."""
        with self.api.watch(self.slices, version, 5, **query) as events:
            return [(event["type"], event["object"]["metadata"]["name"]) for event in islice(events, count)]


@contextmanager
def made_up() -> Iterator[World]:
    """The fake server, which other tests use."""
    with FakeKubernetes() as fake, Api(fake.url, "test") as api:

        def limited(rules: list[Object]) -> Api:
            fake.rules = [*rules]
            return api

        yield World(api, api, "ns", fake.store.compact, limited)


@contextmanager
def real(plane: ControlPlane, server: ApiServer, unbuffered: ApiServer) -> Iterator[World]:
    """Two real servers of one cluster."""
    with ExitStack() as stack:

        def way(to: ApiServer, token: str) -> Api:
            return stack.enter_context(Api(to.url, token, to.authority))

        def limited(rules: list[Object]) -> Api:
            bind(admin, namespace, rules)
            return way(server, token_of(admin, namespace, "somebody"))

        admin = way(server, server.admin)
        namespace = new_namespace(admin)
        yield World(admin, way(unbuffered, server.admin), namespace, plane.compact, limited)


def bind(admin: Api, namespace: str, rules: list[Object]) -> None:
    """Create an account with the rights of the rules."""
    access = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"}
    subject = {"kind": "ServiceAccount", "name": "somebody", "namespace": namespace}
    admin.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "somebody"}})
    admin.ask("POST", f"{access}/roles", {"metadata": {"name": "some"}, "rules": rules})
    binding = {"metadata": {"name": "some"}, "roleRef": role, "subjects": [subject]}
    admin.ask("POST", f"{access}/rolebindings", binding)


def refused(api: Api, method: str, path: str, body: Object | None = None) -> tuple[int, str]:
    """Return the code and the reason of a refused request."""
    with pytest.raises(ApiRefused) as refusal:
        api.ask(method, path, body)
    return refusal.value.code, refusal.value.reason
