"""Definitions of the operators' resources that the chart uses, and of resources newer than 1.20."""

from tests.kubernetes.api import Object

_UNAPPROVED = {"api-approved.kubernetes.io": "unapproved, only for tests"}
_KINDS = (
    ("discovery.k8s.io", "v1", "EndpointSlice"),
    ("keda.sh", "v1alpha1", "ScaledObject"),
    ("keda.sh", "v1alpha1", "TriggerAuthentication"),
    ("monitoring.coreos.com", "v1", "ServiceMonitor"),
    ("monitoring.coreos.com", "v1", "PodMonitor"),
    ("monitoring.coreos.com", "v1", "PrometheusRule"),
    ("cert-manager.io", "v1", "Certificate"),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute"),
    ("gateway.networking.k8s.io", "v1", "GRPCRoute"),
)


def definitions() -> list[Object]:
    """Return definitions that accept any fields. The tests in tests/helm check the fields against published schemas."""
    return [_definition(*each) for each in _KINDS]


def _definition(group: str, version: str, kind: str) -> Object:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": _UNAPPROVED},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [served],
        },
    }
