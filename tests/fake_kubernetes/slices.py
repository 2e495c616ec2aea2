"""EndpointSlice objects as the control plane writes them."""

from typing import Any

from tests.fake_kubernetes.store import Kind, Object

SLICES: Kind = ("discovery.k8s.io", "endpointslices", "ns")
SERVICE = "verifier-headless"


def pod(number: int, ready: bool = True, serving: bool = True, terminating: bool = False) -> Object:
    """One endpoint of a slice."""
    return {
        "addresses": [f"10.0.0.{number}"],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {"kind": "Pod", "name": f"pod-{number}", "uid": f"uid-{number}"},
    }


def slice_of(name: str, *pods: Object, service: str = SERVICE, port: int = 50053, **changes: Any) -> Object:
    """One slice of a Service."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": port, "protocol": "TCP"}],
        "endpoints": list(pods),
    } | changes
