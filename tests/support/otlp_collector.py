"""A local OTLP trace collector that stores the spans it receives."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True, slots=True)
class Sent:
    """One received span."""

    service: str
    span: Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace(self) -> str:
        return self.span.trace_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return {each.key: _value(each.value) for each in self.span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@dataclass
class Collector(pb_grpc.TraceServiceServicer):
    """A collector that stores every span."""

    url: str = ""
    spans: list[Sent] = field(default_factory=list)

    def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> pb.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            (service,) = [_value(each.value) for each in resource.resource.attributes if each.key == "service.name"]
            self.spans += [Sent(service, span) for scope in resource.scope_spans for span in scope.spans]
        return pb.ExportTraceServiceResponse()

    def until(self, enough: Callable[[list[Sent]], bool], seconds: float = 60.0) -> list[Sent]:
        """Return the spans once there are enough."""
        deadline = time.monotonic() + seconds
        while not enough(self.spans):
            assert time.monotonic() < deadline, [(each.service, each.name) for each in self.spans]
            time.sleep(0.05)
        return list(self.spans)


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector inside the context."""
    server, kept = grpc.server(ThreadPoolExecutor(2)), Collector()
    pb_grpc.add_TraceServiceServicer_to_server(kept, server)
    kept.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield kept
    finally:
        server.stop(0).wait()
