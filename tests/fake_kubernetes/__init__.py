"""A Kubernetes API server on loopback, small, faithful in what clients rely on, and made to fail on request."""

from tests.fake_kubernetes.server import FakeKubernetes

__all__ = ["FakeKubernetes"]
