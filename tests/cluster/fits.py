"""Files of helm/ci that run on a cluster without operators and accelerators, and the reasons why others do not."""

from collections.abc import Mapping
from typing import Any

from tests.helm.cases import values_of

FITTING = ("default", "hpa", "keys", "minimal-cpu", "plain", "ratio-controller")
"""Files to install; the store named `redis` and the Secrets of pods.py exist for them."""
WHY_NOT: Mapping[str, str] = {
    "dra": "its devices are allocated by a driver",
    "full": "its resources are those of operators",
    "keda": "KEDA is an operator",
    "kv": "its stores are outside the cluster",
    "models": "its models are downloaded",
    "mtls-redis-tls": "its certificates come from cert-manager",
    "oci": "its model is an image that no registry has",
    "openshift": "its users are chosen by OpenShift",
    "s3": "its model is in a bucket",
    "vllm": "its verifiers have accelerators",
}
STORED = ("minimal-cpu",)
"""Files with a claim, which a default StorageClass provides for."""


_ELSEWHERE: Mapping[str, Mapping[str, object]] = {"keys": {"redis": {"external": {"url": "redis://redis:6379/0"}}}}
"""Overrides for files whose store is outside the cluster."""


def _small(memory: str, limit: str) -> Mapping[str, object]:
    resources = {"requests": {"cpu": "50m", "memory": memory}, "limits": {"memory": limit}}
    return {"resources": resources, "tmpSize": "256Mi"}


_SMALL: Mapping[str, object] = {
    "drafter": _small("512Mi", "1Gi"),
    "verifier": _small("512Mi", "1Gi"),
    "gateway": _small("256Mi", "512Mi"),
}
"""Overrides for each file, so that one node has room for all of it and for the pods of a rollout."""


def fitted(case: str) -> dict[str, Any]:
    """Return the values of a file in helm/ci, with the overrides that it needs on any cluster."""
    return over(over(values_of(case), _ELSEWHERE.get(case, {})), _SMALL)


def _probe(path: str, period: int, failures: int) -> Mapping[str, object]:
    asked = {"path": path, "port": "http"}
    return {"httpGet": asked, "timeoutSeconds": 5, "periodSeconds": period, "failureThreshold": failures}


_PROBES: Mapping[str, object] = {
    "startup": _probe("/livez", 5, 60),
    "readiness": _probe("/readyz", 5, 2),
    "liveness": _probe("/livez", 10, 6),
}
OLDER: Mapping[str, object] = {
    tier: {"probes": _PROBES, "drain": {"preStop": "exec"}} for tier in ("drafter", "verifier", "gateway")
}
"""Overrides for each file on a cluster without gRPC probes and without `preStop` sleeps."""

BY_CPU: Mapping[str, object] = {
    "drafter": {
        "autoscaling": {
            "kind": "hpa",
            "minReplicas": 1,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
                }
            ],
        }
    }
}
"""Scaling of drafters by a metric that any metrics server has."""


def by_ratio(prometheus: str) -> Mapping[str, object]:
    """Return values for two or three drafters scaled by the ratio controller. It reads pods if no Prometheus is set."""
    return {
        "verifier": {"replicas": 1},
        "drafter": {"autoscaling": {"kind": "ratio", "minReplicas": 2, "maxReplicas": 3}},
        "metrics": {"prometheusAddress": prometheus},
    }


def over(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return values merged with overrides, as Helm merges several files."""
    merged = dict(values)
    for key, value in others.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = over(merged[key], value) if both else value
    return merged
