"""The registry of a process's metrics, with what every process of specdec tells of itself."""

import platform

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics

from specdec.serving.version import package_version


def process_registry(service: str) -> CollectorRegistry:
    """A new registry with `specdec_build_info` and `process_*`, and without a `_created` series beside each counter."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types for it
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    labels = ("service", "version", "python")
    built = Gauge("specdec_build_info", "What runs; always 1.", labels, registry=registry)
    built.labels(service, package_version(), platform.python_version()).set(1)
    return registry
