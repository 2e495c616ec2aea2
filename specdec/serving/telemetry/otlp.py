"""OpenTelemetry spans, sent over OTLP. Imported only if traces are exported."""

import os
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from specdec.serving.telemetry.spans import Attributes, TraceSpan
from specdec.serving.version import package_version

_PROPAGATOR = TraceContextTextMapPropagator()


class OtlpSpan(TraceSpan):
    """A span that is sent when it ends."""

    def __init__(self, span: Span) -> None:
        self.span = span

    @property
    def records(self) -> bool:  # type: ignore[override]  # a constant of the unrecorded span
        return self.span.is_recording()

    def describe(self, attributes: Attributes, name: str = "") -> None:
        self.span.set_attributes(attributes)
        if name:
            self.span.update_name(name)

    def fail(self, error: Exception) -> None:
        self.span.set_attribute("error.type", getattr(error, "reason", type(error).__name__))
        self.span.set_status(Status(StatusCode.ERROR, str(error)))

    def end(self) -> None:
        self.span.end()

    def headers(self) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, set_span_in_context(self.span, Context()))
        return headers


class OtlpTracer:
    """Sends spans in the background. `OTEL_*` variables such as `OTEL_TRACES_SAMPLER` configure it further."""

    def __init__(self, service: str, endpoint: str) -> None:
        """Create the tracer. `OTEL_SERVICE_NAME` overrides `service`; an empty `endpoint` defers to `OTEL_*`."""
        named = {SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", f"specdec-{service}")}
        self._provider = TracerProvider(
            resource=Resource.create(named | {SERVICE_VERSION: package_version()}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint or None)))
        self._tracer = self._provider.get_tracer("specdec", package_version())

    def start(
        self, name: str, parent: TraceSpan | Mapping[str, str], attributes: Attributes, *, began: int, served: bool
    ) -> TraceSpan:
        """Start a span. A span whose parent is not sampled is not sampled either."""
        kind = SpanKind.SERVER if served else SpanKind.INTERNAL
        return OtlpSpan(self._tracer.start_span(name, _context(parent), kind, attributes, start_time=began))

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


def _context(parent: TraceSpan | Mapping[str, str]) -> Context:
    if isinstance(parent, OtlpSpan):
        return set_span_in_context(parent.span, Context())
    return _PROPAGATOR.extract(parent, Context()) if isinstance(parent, Mapping) else Context()
