"""Traces: what each process does for a request, as spans of one trace. Off, nothing is imported and nothing is kept.

The tracer and the span that work belongs to are context variables, so that they follow the work into its tasks. They
are passed to other processes as W3C Trace Context: in the headers of HTTP, in the metadata of gRPC, and on the stream
of a drafter, which carries all sessions, with the session that is opened.
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
    """Where traces are sent by OpenTelemetry; the package's extra `otel` must be installed for it."""

    endpoint: str = ""
    """Address for OTLP over gRPC, such as `http://127.0.0.1:4317`; empty takes that of `OTEL_EXPORTER_OTLP_ENDPOINT`,
    and sends nothing where there is none."""


_UNRECORDED = TraceSpan()
_tracer: ContextVar[Tracer | None] = ContextVar("tracer", default=None)
_span: ContextVar[TraceSpan] = ContextVar("span", default=_UNRECORDED)


@contextmanager
def exporting(service: str, settings: OtelSettings) -> Iterator[None]:
    """Send the spans of what runs inside the context, where an endpoint is set; those left are sent at its end.

    Raises:
        ConfigError: an endpoint is set, and the packages of the extra are not installed.
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
    """Record the spans of what runs inside the context."""
    before = _tracer.get()
    _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.set(before)


@contextmanager
def served_span(name: str, headers: Mapping[str, str], *, begins: bool) -> Iterator[TraceSpan]:
    """What this process does for one call: a part of the caller's trace.

    Args:
        begins: whether a call without a trace begins one.
    """
    tracer = _tracer.get()
    if tracer is None or not (begins or TRACEPARENT in headers):
        with _current(_UNRECORDED):  # a call that came on a stream is no part of the stream's own trace
            yield _UNRECORDED
        return
    with _current(tracer.start(name, headers, {}, began=time.time_ns(), served=True)) as span:
        yield span


@contextmanager
def part_span(name: str) -> Iterator[TraceSpan]:
    """A part of the work that the current span is of; without one, it is recorded nowhere."""
    tracer, parent = _tracer.get(), _span.get()
    if tracer is None or parent is _UNRECORDED:
        yield _UNRECORDED
        return
    with _current(tracer.start(name, parent, {}, began=time.time_ns(), served=False)) as span:
        yield span


def begin_part(name: str) -> TraceSpan | None:
    """Begin a part of the work that the current span is of, for the caller to end; None where it is not recorded."""
    tracer, parent = _tracer.get(), _span.get()
    if tracer is None or parent is _UNRECORDED:
        return None
    return tracer.start(name, parent, {}, began=time.time_ns(), served=False)


def record_span(name: str, traceparent: str, began: int, attributes: Attributes) -> None:
    """Record work that ends now, for a span of another process; nothing where `traceparent` is empty.

    Args:
        began: in nanoseconds of Unix time.
    """
    tracer = _tracer.get()
    if tracer is not None and traceparent:
        tracer.start(name, {TRACEPARENT: traceparent}, attributes, began=began, served=False).end()


def trace_headers() -> Mapping[str, str]:
    """What tells another process that its work belongs to the current span; empty without one."""
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
        _span.set(before)  # not by a token: a generator may be closed in another context than it began in
        span.end()
