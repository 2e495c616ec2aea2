"""Spans as the code sees them, and what makes them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class TraceSpan:
    """A span that nobody records."""

    records = False
    """Whether attributes are worth making."""

    def describe(self, attributes: Attributes, name: str = "") -> None:
        """Add attributes, and give it another name unless that is empty."""

    def fail(self, error: Exception) -> None:
        """Note the error that ends it."""

    def end(self) -> None:
        """End it now."""

    def headers(self) -> Mapping[str, str]:
        """What tells another process that its work belongs to this span."""
        return {}


class Tracer(Protocol):
    """Makes spans that are recorded."""

    def start(
        self, name: str, parent: TraceSpan | Mapping[str, str], attributes: Attributes, *, began: int, served: bool
    ) -> TraceSpan:
        """Begin a span.

        Args:
            parent: the span it is a part of, here, or by the headers that another process sent; without `traceparent`
                in them, a trace begins.
            began: in nanoseconds of Unix time.
            served: whether it is what a server does for a call.
        """
