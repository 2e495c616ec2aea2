"""Metrics that every process exports beside its own."""

from prometheus_client import Counter
from prometheus_client.exposition import choose_encoder

from specdec.serving.telemetry.registry import process_registry
from specdec.serving.version import package_version


def test_a_process_reports_what_it_is_and_uses_and_never_created_series() -> None:
    registry = process_registry("drafter")
    Counter("specdec_rounds", "Rounds.", registry=registry).inc()
    for accepted in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        encode, _ = choose_encoder(accepted)
        page = encode(registry).decode()
        assert 'specdec_build_info{python="3.' in page
        assert f'service="drafter",version="{package_version()}"}} 1.0' in page
        for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
            assert f"\n{name} " in page
        assert "specdec_rounds_total 1.0" in page
        assert "_created" not in page
