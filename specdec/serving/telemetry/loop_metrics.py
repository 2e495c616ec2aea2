"""Lock-free metrics that one thread writes many times per second. Collection assembles them."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class CounterValue:
    """One labelled value of a counter."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Increase the value."""
        self.value += amount


class LoopCounter(Collector):
    """A counter that one thread writes, keyed by label values."""

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, tuple(labelnames)
        self._values: dict[tuple[str, ...], CounterValue] = {}
        self.inc = (CounterValue() if labelnames else self.labels()).inc
        registry.register(self)

    def labels(self, *values: str) -> CounterValue:
        """Return the value with these labels."""
        return self._values.setdefault(values, CounterValue())

    def describe(self) -> Iterator[Metric]:
        """Return the family without values, from which a registry learns its name."""
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, value in list(self._values.items()):
            family.add_metric(labels, value.value)
        yield family


class HistogramValue:
    """One labelled value of a histogram."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of observations in each bucket, the last one unbounded."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Record observations of a value."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times


class LoopHistogram(Collector):
    """A histogram that one thread writes, keyed by label values."""

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
        """Return the value with these labels."""
        return self._values.setdefault(values, HistogramValue(self._bounds))

    def describe(self) -> Iterator[Metric]:
        """Return the family without values, from which a registry learns its name."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, value in list(self._values.items()):
            buckets = list(zip(names, map(float, accumulate(value.counts)), strict=True))
            family.add_metric(labels, buckets, value.sum)
        yield family
