"""How many clients a system holds: the most at which the slowest of them still has what all were promised."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clients:
    """Number of clients that one system serves."""

    promise: float
    """Tokens a second for each client."""
    slowest: Mapping[int, float]
    """Tokens a second of the slowest client, by the number of clients that was tried."""

    @property
    def most(self) -> int:
        """The most clients of those tried at which each has the promise; 0 when there is no such number."""
        return max((count for count, speed in self.slowest.items() if speed >= self.promise), default=0)


def count_clients(slowest: Callable[[int], float], promise: float, bounds: tuple[int, int]) -> Clients:
    """Search by halves between the bounds, and beyond them where the promise is kept at both, or at neither.

    Args:
        slowest: measures the tokens a second of the slowest of so many clients; it falls as they become more.
        bounds: a number that likely has the promise, and a greater one that likely has not.
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
