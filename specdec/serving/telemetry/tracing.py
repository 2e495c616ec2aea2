"""Traces: each process's work for a request, as spans of one trace. Without tracing, nothing is imported or stored.

The tracer and the current span are context variables, so they follow work into its tasks. Other processes receive the
span as W3C Trace Context: in HTTP headers, in gRPC metadata, and in the message that opens a session on a drafter's
shared stream.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from specdec.errors import ConfigError
from specdec.serving.environment import otlp_endpoint
from specdec.serving.settings import Section
from specdec.serving.telemetry.spans import Attributes, Tracer, TraceSpan

TRACEPARENT = "traceparent"


class OtelSettings(Section):
    """Export of traces by OpenTelemetry, which needs the package's extra `otel`."""

    endpoint: str = ""
    """Address for OTLP over gRPC, such as `http://127.0.0.1:4317`. Empty uses `OTEL_EXPORTER_OTLP_ENDPOINT`; without
    either, no traces are exported."""


_UNRECORDED = TraceSpan()
_tracer: ContextVar[Tracer | None] = ContextVar("tracer", default=None)
_span: ContextVar[TraceSpan] = ContextVar("span", default=_UNRECORDED)


@contextmanager
def exporting(service: str, settings: OtelSettings) -> Iterator[None]:
    """Export the spans of work inside the context, if an endpoint is set. Remaining spans are sent at its end.

    Raises:
        ConfigError: an endpoint is set, but the packages of the extra are not installed.
    """
    endpoint = settings.endpoint or otlp_endpoint()
    if not endpoint:
        yield
        return
    try:
        from specdec.serving.telemetry.otlp import OtlpTracer
    except ImportError as error:
        raise ConfigError(f"otel.endpoint needs the packages of the extra otel: {error}") from error
    tracer = OtlpTracer(service, settings.endpoint)
    with tracing_with(tracer):
        try:
            yield
        finally:
            tracer.close()


@contextmanager
def tracing_with(tracer: Tracer) -> Iterator[None]:
    """Record the spans of work inside the context."""
    before = _tracer.get()
    _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.set(before)


@contextmanager
def served_span(name: str, headers: Mapping[str, str], *, begins: bool) -> Iterator[TraceSpan]:
    """Span of this process's work for one call, as part of the caller's trace.

    Args:
        begins: whether a call without a trace starts one.
    """
    tracer = _tracer.get()
    if tracer is None or not (begins or TRACEPARENT in headers):
        with _current(_UNRECORDED):  # a call on a stream does not belong to the stream's own trace
            yield _UNRECORDED
        return
    with _current(tracer.start(name, headers, {}, began=time.time_ns(), served=True)) as span:
        yield span


@contextmanager
def part_span(name: str) -> Iterator[TraceSpan]:
    """Span of a part of the current span's work. Without a current span, it is not recorded."""
    tracer, parent = _tracer.get(), _span.get()
    if tracer is None or parent is _UNRECORDED:
        yield _UNRECORDED
        return
    with _current(tracer.start(name, parent, {}, began=time.time_ns(), served=False)) as span:
        yield span


def begin_part(name: str) -> TraceSpan | None:
    """Start a child of the current span that the caller ends. Return None if there is no recorded span."""
    tracer, parent = _tracer.get(), _span.get()
    if tracer is None or parent is _UNRECORDED:
        return None
    return tracer.start(name, parent, {}, began=time.time_ns(), served=False)


def record_span(name: str, traceparent: str, began: int, attributes: Attributes) -> None:
    """Record work that ends now, as part of another process's span. Do nothing if `traceparent` is empty.

    Args:
        began: start in nanoseconds of Unix time.
    """
    tracer = _tracer.get()
    if tracer is not None and traceparent:
        tracer.start(name, {TRACEPARENT: traceparent}, attributes, began=began, served=False).end()


def trace_headers() -> Mapping[str, str]:
    """Return the headers that link another process's work to the current span; empty without one."""
    return _span.get().headers()


@contextmanager
def _current(span: TraceSpan) -> Iterator[TraceSpan]:
    before = _span.get()
    _span.set(span)
    try:
        yield span
    except Exception as error:
        span.fail(error)
        raise
    finally:
        _span.set(before)  # no token: a generator may be closed in a context other than the one it started in
        span.end()
