"""The metrics port over real HTTP."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from specdec.errors import ConfigError
from specdec.serving.telemetry.metrics import MetricsServer, serve_metrics


class Readiness:
    def __init__(self) -> None:
        self.ready = False

    def __call__(self) -> bool:
        return self.ready


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def server(readiness: Readiness) -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Counter("specdec_rounds", "Rounds.", registry=registry).inc(3)
    running = serve_metrics("127.0.0.1:0", registry, readiness)
    yield running
    running.close()


def _get(server: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_are_exposed(server: MetricsServer) -> None:
    status, body = _get(server, "/metrics")
    assert status == 200
    assert "specdec_rounds_total 3.0" in body


def test_readiness_is_asked_each_time(server: MetricsServer, readiness: Readiness) -> None:
    assert _get(server, "/readyz")[0] == 503
    readiness.ready = True
    assert _get(server, "/readyz")[0] == 200


def test_liveness_does_not_wait_for_readiness(server: MetricsServer) -> None:
    assert _get(server, "/livez")[0] == 200


def test_an_unknown_path_is_404(server: MetricsServer) -> None:
    assert _get(server, "/nope")[0] == 404


def test_a_taken_port_is_refused(server: MetricsServer) -> None:
    with pytest.raises(ConfigError, match=r"http address 127.0.0.1:\d+: Address already in use"):
        serve_metrics(server.address, CollectorRegistry(), lambda: True)
