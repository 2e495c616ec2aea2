"""Decides from measurements whether blocks are fetched from the store or computed again."""

import time
from collections.abc import Callable

_WEIGHT = 0.3
"""Weight of the newest measurement in the mean, in (0, 1]."""
_STALE = 60.0
"""Seconds after which measurements are forgotten, so that a path that was too slow is tried again."""


def worth_restoring(tokens: int, size: int, bandwidth: float | None, prefill_rate: float) -> bool:
    """Whether fetching blocks is faster than computing them; what is unknown is tried.

    Args:
        tokens: how many tokens would be restored.
        size: of their blocks, in bytes.
        bandwidth: bytes a second from the store into a verifier; None while unknown.
        prefill_rate: tokens a second that the verifier computes; 0 while unknown.
    """
    if not tokens:
        return False
    if bandwidth is None or not prefill_rate:
        return True
    return size / bandwidth < tokens / prefill_rate


class Bandwidth:
    """Bytes a second as an exponentially weighted mean, which is forgotten when it is old."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mean: float | None = None
        self._seen = clock()

    @property
    def value(self) -> float | None:
        """Bytes a second; None before the first measurement, and long after the last."""
        return self._mean if self._clock() - self._seen < _STALE else None

    def observe(self, size: int, seconds: float) -> None:
        """Add the measurement of `size` bytes that took `seconds`, which is more than 0."""
        rate, before = size / seconds, self.value
        self._mean = rate if before is None else before + _WEIGHT * (rate - before)
        self._seen = self._clock()
