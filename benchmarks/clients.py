"""Client capacity of a system: the largest number of clients at which the slowest still has the promised speed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clients:
    """Number of clients that one system serves."""

    promise: float
    """Promised tokens a second for each client."""
    slowest: Mapping[int, float]
    """Tokens a second of the slowest client, by number of clients tried."""

    @property
    def most(self) -> int:
        """Largest number of clients tried at which each has the promised speed, or 0 if there is none."""
        return max((count for count, speed in self.slowest.items() if speed >= self.promise), default=0)


def count_clients(slowest: Callable[[int], float], promise: float, bounds: tuple[int, int]) -> Clients:
    """Search by bisection between the bounds, and beyond them if both keep the promise or neither does.

    Args:
        slowest: measures the tokens a second of the slowest of that many clients, and decreases as their number grows.
        bounds: a number that likely keeps the promise, and a greater one that likely does not.
    """
    low, high = bounds
    found = {each: slowest(each) for each in bounds}
    while found[high] >= promise:
        low, high = high, 2 * high
        found[high] = slowest(high)
    while found[low] < promise and low > 1:
        low, high = low // 2, low
        found[low] = slowest(low)
    while high - low > 1:
        middle = (low + high) // 2
        found[middle] = slowest(middle)
        low, high = (middle, high) if found[middle] >= promise else (low, middle)
    return Clients(promise, found)
