"""Metrics that one thread writes, many times a second: they take no lock, and are put together when they are read."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class CounterValue:
    """One value of a counter."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add to the value."""
        self.value += amount


class LoopCounter(Collector):
    """A counter of one thread, by the values of its labels."""

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, tuple(labelnames)
        self._values: dict[tuple[str, ...], CounterValue] = {}
        self.inc = (CounterValue() if labelnames else self.labels()).inc
        registry.register(self)

    def labels(self, *values: str) -> CounterValue:
        """The value with these labels."""
        return self._values.setdefault(values, CounterValue())

    def describe(self) -> Iterator[Metric]:
        """The family without values, by which a registry knows its name."""
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, value in list(self._values.items()):
            family.add_metric(labels, value.value)
        yield family


class HistogramValue:
    """One value of a histogram."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations up to each bound and above the one before it, and those above all."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add observations of a value."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times


class LoopHistogram(Collector):
    """A histogram of one thread, by the values of its labels."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
        buckets: Sequence[float],
    ) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, tuple(labelnames)
        self._bounds = tuple(map(float, buckets))
        self._values: dict[tuple[str, ...], HistogramValue] = {}
        self.observe = (HistogramValue(self._bounds) if labelnames else self.labels()).observe
        registry.register(self)

    def labels(self, *values: str) -> HistogramValue:
        """The value with these labels."""
        return self._values.setdefault(values, HistogramValue(self._bounds))

    def describe(self) -> Iterator[Metric]:
        """The family without values, by which a registry knows its name."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, value in list(self._values.items()):
            buckets = list(zip(names, map(float, accumulate(value.counts)), strict=True))
            family.add_metric(labels, buckets, value.sum)
        yield family
