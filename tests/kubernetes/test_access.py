"""The API server allows each account of the chart the requests of its component, and no others."""

from collections.abc import Iterable
from itertools import product

import pytest

from tests.helm.engine import RELEASE
from tests.kubernetes.api import Api, ApiRefused, Object
from tests.kubernetes.arrange import Installed, token_of
from tests.kubernetes.control_plane import ApiServer

DRAFTER, VERIFIER, GATEWAY, CONTROLLER = (
    f"{RELEASE}-specdec-{component}" for component in ("drafter", "verifier", "gateway", "ratio-controller")
)
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
GATEWAY_MAY = {(verb, "discovery.k8s.io", "endpointslices", "") for verb in ("get", "list", "watch")}
CONTROLLER_MAY = {
    *((verb, "apps", "deployments/scale", DRAFTER) for verb in ("get", "patch")),
    *((verb, "coordination.k8s.io", "leases", CONTROLLER) for verb in ("get", "update", "delete")),
    ("create", "coordination.k8s.io", "leases", ""),
}


def _expanded(rules: Iterable[Object]) -> set[tuple[str, ...]]:
    """Return (verb, group, resource, name) for everything that the rules allow; an empty name stands for any."""
    return {
        each
        for rule in rules
        for each in product(rule["verbs"], rule["apiGroups"], rule["resources"], rule.get("resourceNames") or [""])
    }


def _allowed(server: ApiServer, token: str, namespace: str) -> set[tuple[str, ...]]:
    with Api(server.url, token, server.authority) as api:
        status = api.ask("POST", REVIEW, {"spec": {"namespace": namespace}})["status"]
    assert not status["incomplete"]
    return _expanded(status["resourceRules"])


def _accounts(admin: Api, namespace: str) -> list[str]:
    items = admin.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]
    return [item["metadata"]["name"] for item in items]


def test_each_account_may_do_what_its_component_does_and_nothing_else(
    installed: Installed, server: ApiServer, admin: Api, namespace: str
) -> None:
    accounts = {name: token_of(admin, namespace, name) for name in _accounts(admin, namespace)}
    admin.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "nobody"}})
    everybody = _allowed(server, token_of(admin, namespace, "nobody"), namespace)
    found = {name: _allowed(server, token, namespace) - everybody for name, token in accounts.items()}
    assert found == {DRAFTER: set(), VERIFIER: set(), GATEWAY: GATEWAY_MAY, CONTROLLER: CONTROLLER_MAY}
    assert not any(_allowed(server, token, "default") - everybody for token in accounts.values())


@pytest.mark.parametrize(
    ("component", "method", "path", "body"),
    [
        ("gateway", "GET", "api/v1/namespaces/{}/pods", None),
        ("gateway", "GET", "api/v1/namespaces/{}/secrets", None),
        ("gateway", "DELETE", "apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/a", None),
        ("gateway", "GET", "apis/discovery.k8s.io/v1/namespaces/default/endpointslices", None),
        ("gateway", "PATCH", f"apis/apps/v1/namespaces/{{}}/deployments/{DRAFTER}/scale", {"spec": {"replicas": 0}}),
        ("ratio-controller", "PATCH", f"apis/apps/v1/namespaces/{{}}/deployments/{VERIFIER}/scale", {"spec": {}}),
        ("ratio-controller", "PATCH", f"apis/apps/v1/namespaces/{{}}/deployments/{DRAFTER}", {"spec": {}}),
        ("ratio-controller", "GET", "apis/coordination.k8s.io/v1/namespaces/{}/leases", None),
        ("ratio-controller", "GET", "apis/coordination.k8s.io/v1/namespaces/{}/leases/others", None),
        ("drafter", "GET", "apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", None),
        ("verifier", "GET", "apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", None),
    ],
)
def test_what_an_account_may_not_do_is_forbidden(
    installed: Installed, server: ApiServer, component: str, method: str, path: str, body: Object | None
) -> None:
    with (
        Api(server.url, installed.token(component), server.authority) as api,
        pytest.raises(ApiRefused, match="403 Forbidden"),
    ):
        api.ask(method, "/" + path.format(installed.namespace), body)
