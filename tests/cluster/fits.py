"""Which files of helm/ci a cluster without operators and accelerators can run, and why others do not fit."""

from collections.abc import Mapping

FITTING = ("default", "hpa", "minimal-cpu", "plain", "ratio-controller")
"""Those that are installed; a store named `redis` and the Secret `redis-url` are there for them."""
WHY_NOT: Mapping[str, str] = {
    "dra": "its devices are allocated by a driver",
    "full": "its resources are those of operators",
    "keda": "KEDA is an operator",
    "keys": "its certificate and keys are those of an installation",
    "kv": "its stores are outside the cluster",
    "models": "its models are downloaded",
    "mtls-redis-tls": "its certificates come from cert-manager",
    "oci": "its model is an image that no registry has",
    "openshift": "its users are chosen by OpenShift",
    "s3": "its model is in a bucket",
    "vllm": "its verifiers have accelerators",
}
SMALL: Mapping[str, object] = {
    "drafter": {"resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}},
    "verifier": {"resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}},
    "gateway": {"resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}},
}
"""Values over each file's, so that one node has room for all of it."""

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
"""Drafters by a metric that any metrics server has."""


def by_ratio(prometheus: str) -> Mapping[str, object]:
    """Two or three drafters, as the ratio controller says."""
    return {
        "verifier": {"replicas": 1},
        "drafter": {"autoscaling": {"kind": "ratio", "minReplicas": 2, "maxReplicas": 3}},
        "metrics": {"prometheusAddress": prometheus},
    }
