"""Whether blocks are fetched or computed again; a pure policy over what was measured."""

import time
from collections.abc import Callable

_WEIGHT = 0.3
"""Of the newest measurement."""
_STALE = 60.0
"""Seconds after which a measurement says nothing: what was too slow is tried again."""


def worth_restoring(tokens: int, size: int, bandwidth: float | None, prefill_rate: float) -> bool:
    """Whether fetching beats computing.

    Args:
        tokens: to be restored.
        size: their bytes.
        bandwidth: bytes a second from the store into a verifier; None when unknown, which only a try can change.
        prefill_rate: tokens a second that a verifier computes; 0 when unknown.
    """
    if not tokens:
        return False
    if bandwidth is None or not prefill_rate:
        return True
    return size / bandwidth < tokens / prefill_rate


class Bandwidth:
    """Bytes a second, an exponentially weighted mean that goes stale."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mean: float | None = None
        self._seen = clock()

    @property
    def value(self) -> float | None:
        """None before any measurement, and long after the last."""
        return self._mean if self._clock() - self._seen < _STALE else None

    def observe(self, size: int, seconds: float) -> None:
        """Learn from `size` bytes that took `seconds`, more than 0."""
        rate, before = size / seconds, self.value
        self._mean = rate if before is None else before + _WEIGHT * (rate - before)
        self._seen = self._clock()
