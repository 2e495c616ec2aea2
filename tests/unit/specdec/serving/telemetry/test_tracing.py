"""Spans are linked across tasks and processes and sent to a collector. Disabled tracing does nothing."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdec.errors import ConfigError, NoVerifier
from specdec.serving.telemetry.tracing import (
    OtelSettings,
    exporting,
    part_span,
    record_span,
    served_span,
    trace_headers,
)
from tests.support.otlp_collector import collector

ROOT = Path(__file__).parents[5]
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


@pytest.fixture(autouse=True)
def _without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


async def test_a_call_belongs_to_its_caller_s_trace_and_its_tasks_to_the_call() -> None:
    async def task() -> str:
        with part_span("part") as span:
            span.describe({"n": 3})
            return trace_headers()["traceparent"]

    with collector() as kept:
        with exporting("verifier", OtelSettings(endpoint=kept.url)):
            with served_span("call", PARENT, begins=False):
                inner = await asyncio.create_task(task())
            record_span("draft", inner, time.time_ns() - 1_000_000, {"k": "v"})
        spans = {each.name: each for each in kept.until(lambda spans: len(spans) == 3)}
    call, part, draft = (spans[name].span for name in ("call", "part", "draft"))
    assert {each.trace for each in spans.values()} == {TRACE}
    assert {each.service for each in spans.values()} == {"specdec-verifier"}
    assert (call.parent_span_id.hex(), part.parent_span_id) == (CALLER, call.span_id)
    assert inner == f"00-{TRACE}-{part.span_id.hex()}-01"
    assert draft.parent_span_id == part.span_id
    assert draft.end_time_unix_nano - draft.start_time_unix_nano >= 1_000_000
    assert (spans["part"].attributes, spans["draft"].attributes) == ({"n": 3}, {"k": "v"})


def test_only_a_public_call_begins_a_trace() -> None:
    with collector() as kept:
        with exporting("gateway", OtelSettings(endpoint=kept.url)):
            with served_span("look", {}, begins=False), part_span("inner"):
                assert trace_headers() == {}
            with served_span("request", {"traceparent": "nonsense"}, begins=True):
                assert trace_headers()["traceparent"]
        (span,) = kept.until(bool)
    assert (span.name, span.span.parent_span_id) == ("request", b"")


def test_a_caller_that_does_not_sample_is_followed() -> None:
    with collector() as kept:
        unsampled = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
        settings = OtelSettings(endpoint=kept.url)
        with exporting("gateway", settings), served_span("request", unsampled, begins=True) as span:
            assert not span.records
            assert trace_headers()["traceparent"].endswith("-00")
        assert kept.spans == []


def test_an_error_is_told() -> None:
    with collector() as kept:
        settings, refused = OtelSettings(endpoint=kept.url), pytest.raises(NoVerifier)
        with exporting("gateway", settings), refused, served_span("request", {}, begins=True):
            raise NoVerifier("none is ready")
        (span,) = kept.until(bool)
    assert span.attributes["error.type"] == "NO_VERIFIER"
    assert span.span.status.message == "none is ready"


def test_the_variables_of_opentelemetry_say_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as kept:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", kept.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        with exporting("gateway", OtelSettings()), served_span("request", {}, begins=True):
            pass
        assert [each.service for each in kept.until(bool)] == ["mine"]
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        with exporting("gateway", OtelSettings()), served_span("request", {}, begins=True) as span:
            assert not span.records


def test_off_nothing_is_imported_and_nothing_is_kept() -> None:
    code = (
        "import sys\n"
        "from specdec.serving.telemetry.tracing import OtelSettings, exporting, served_span, part_span, trace_headers\n"
        "with exporting('gateway', OtelSettings()), served_span('a', {'traceparent': 'x'}, begins=True) as span:\n"
        "    with part_span('b') as part:\n"
        "        assert span is part and not part.records and not trace_headers()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_an_endpoint_without_the_packages_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "specdec.serving.telemetry.otlp", None)
    with pytest.raises(ConfigError, match="extra otel"), exporting("gateway", OtelSettings(endpoint="http://a:1")):
        pass
