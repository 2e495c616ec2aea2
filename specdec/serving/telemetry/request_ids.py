"""Request ids: the id of a caller's request follows it from service to service, into the logs of each."""

from collections.abc import Mapping

from structlog.contextvars import get_contextvars

from specdec.serving.telemetry.tracing import trace_headers

HEADER = "x-request-id"
FIELD = "request_id"
"""Field of log events."""


def current_request_id() -> str:
    """Return the request id that log events of the running task have; empty outside a request."""
    return str(get_contextvars().get(FIELD, ""))


def call_headers() -> Mapping[str, str]:
    """Return the headers that link another process's work to the current request: its id and its span."""
    request_id = current_request_id()
    return {**trace_headers(), HEADER: request_id} if request_id else trace_headers()
