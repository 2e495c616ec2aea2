"""Ratios of interleaved runs. A slow moment of the machine affects both runs of a pair, so pairs are compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median with the middle half of its samples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}..{self.high:.2f})"


def spread(samples: Sequence[float]) -> Ratio:
    """Return the median and quartiles of at least one sample."""
    if len(samples) == 1:
        return Ratio(samples[0], samples[0], samples[0])
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return Ratio(median(samples), low, high)


def paired(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the median and quartiles of the ratios of paired runs."""
    return spread([over / under for over, under in zip(numerators, denominators, strict=True)])


def error_of_sums(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the standard error of the ratio of two sums, from the deviations of the pairs. Infinite for one pair."""
    count, whole = len(numerators), sum(denominators)
    if count == 1:
        return math.inf
    ratio = sum(numerators) / whole
    squares = sum((over - ratio * under) ** 2 for over, under in zip(numerators, denominators, strict=True))
    return math.sqrt(squares * count / (count - 1)) / whole


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Fit y = base + slope · x by least squares, and return (base, slope)."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    variance = sum((x - mean_x) ** 2 for x in xs)
    steep = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / variance
    return mean_y - steep * mean_x, steep
