"""Registry of a process's metrics, including those common to every specdec process."""

import platform

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics

from specdec.serving.version import package_version


def process_registry(service: str) -> CollectorRegistry:
    """Create a registry with `specdec_build_info` and `process_*`, and without `_created` series for counters."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types for it
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    labels = ("service", "version", "python")
    built = Gauge("specdec_build_info", "What runs; always 1.", labels, registry=registry)
    built.labels(service, package_version(), platform.python_version()).set(1)
    return registry
