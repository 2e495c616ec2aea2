"""Metrics of a single thread are exported like those of the client library."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from specdec.serving.telemetry.loop_metrics import LoopCounter, LoopHistogram

BUCKETS = (0, 0.5, 2)
VALUES = (0, 0.1, 0.5, 0.50001, 2, 7)


def text(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@pytest.mark.parametrize("labels", [(), ("a", "b")])
def test_they_are_written_as_those_of_the_library(labels: tuple[str, ...]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter, histogram = (
        LoopCounter("c", "C.", labels, registry=ours),
        LoopHistogram("h", "H.", labels, registry=ours, buckets=BUCKETS),
    )
    counters = Counter("c", "C.", labels, registry=theirs)
    histograms = Histogram("h", "H.", labels, registry=theirs, buckets=BUCKETS)
    for value in VALUES:
        for names in [("x", "y"), ("x", "z")][: 1 + bool(labels)]:
            for each in (counter, counters):
                (each.labels(*names) if labels else each).inc(value)
            for other in (histogram, histograms):
                (other.labels(*names) if labels else other).observe(value)
    assert text(ours) == text(theirs)


def test_a_value_may_be_observed_many_times_at_once() -> None:
    registry = CollectorRegistry()
    LoopHistogram("h", "H.", registry=registry, buckets=BUCKETS).observe(0.5, 3)
    assert registry.get_sample_value("h_bucket", {"le": "0.5"}) == 3
    assert registry.get_sample_value("h_sum") == 1.5


def test_a_label_is_there_once_it_is_named() -> None:
    registry = CollectorRegistry()
    LoopCounter("c", "C.", ["kind"], registry=registry).labels("x")
    assert registry.get_sample_value("c_total", {"kind": "x"}) == 0.0
