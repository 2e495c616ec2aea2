"""Interfaces of spans and of the tracers that create them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class TraceSpan:
    """A span that is not recorded."""

    records = False
    """Whether the span records attributes."""

    def describe(self, attributes: Attributes, name: str = "") -> None:
        """Add attributes, and rename the span if `name` is not empty."""

    def fail(self, error: Exception) -> None:
        """Record the error that ends the span."""

    def end(self) -> None:
        """End the span now."""

    def headers(self) -> Mapping[str, str]:
        """Return the trace headers that link another process's work to this span."""
        return {}


class Tracer(Protocol):
    """Creates recorded spans."""

    def start(
        self, name: str, parent: TraceSpan | Mapping[str, str], attributes: Attributes, *, began: int, served: bool
    ) -> TraceSpan:
        """Start a span.

        Args:
            parent: parent span in this process, or the headers of another process's call. Headers without `traceparent`
                start a new trace.
            began: start in nanoseconds of Unix time.
            served: whether the span covers a server's handling of a call.
        """
