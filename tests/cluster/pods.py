"""Manifests of the tests' own objects: confined pods with Python, a store, Secrets and namespaces."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from gateway.certificates.authority import issue, make_authority

GATEWAY_IMAGE, STORE_IMAGE = "specdec/gateway:0.1.0", "valkey/valkey:8.1.4-alpine"
_CONFINED: Mapping[str, object] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def in_registry(image: str, registry: str) -> str:
    """Return the name of an image in a registry, or the name itself if there is none."""
    return f"{registry}/{image}" if registry else image


def python_pod(
    name: str, command: Sequence[str], environment: Mapping[str, str], registry: str = ""
) -> dict[str, object]:
    """Return a confined pod with the gateway's image, which has Python."""
    container = {
        "name": name,
        "image": in_registry(GATEWAY_IMAGE, registry),
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "securityContext": _CONFINED,
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 150,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def store(registry: str = "") -> tuple[dict[str, object], ...]:
    """Return a store named `redis`, as an installation has one, with the Secret of its URL."""
    labels = {"app": "redis"}
    container = {
        "name": "redis",
        "image": in_registry(STORE_IMAGE, registry),
        "imagePullPolicy": "IfNotPresent",
        "command": ["valkey-server", "--protected-mode", "no", "--save", "", "--dir", "/tmp"],
        "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 2},
        "securityContext": _CONFINED,
    }
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    service = {"selector": labels, "ports": [{"port": 6379}]}
    return (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "redis", "labels": labels}, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "redis"}, "spec": service},
        _secret("redis-url", {"url": "redis://redis:6379/0"}),
    )


def callers() -> tuple[dict[str, Any], ...]:
    """Return the Secrets of a gateway with API keys and a public certificate: both, and a key for `helm test`."""
    key, now = "sk-trial", datetime.now(UTC)
    certificate = issue(make_authority("trial", 1, now), ["trial.example.com"], 1, now)
    pems = {"tls.crt": certificate.certificate_pem.decode(), "tls.key": certificate.key_pem.decode()}
    return (
        _secret("api-keys", {"keys": f"trial: sha256:{sha256(key.encode()).hexdigest()}\n"}),
        _secret("public-certificate", pems, "kubernetes.io/tls"),
        _secret("test-key", {"key": key}),
    )


def _secret(name: str, data: Mapping[str, str], kind: str = "Opaque") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": dict(data)}


def namespace(name: str) -> dict[str, object]:
    """Return a namespace that enforces the Pod Security standard `restricted`."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
