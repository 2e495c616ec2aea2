"""When to stop waiting for a drafter that does not answer."""


class Breaker:
    """A circuit breaker: when to stop waiting for answers that do not come, and when to try again.

    It opens after `threshold` failures in a row; while open it allows one try every `probe` seconds; success closes it.

    Times are seconds of one clock, which the caller reads.
    """

    def __init__(self, threshold: int, probe: float) -> None:
        self._threshold = threshold
        self._probe = probe
        self._failures = 0
        self._next_try = 0.0

    def allows(self, now: float) -> bool:
        """Whether a try is allowed at time `now`; one that is allowed while open delays the next one."""
        if self._failures < self._threshold:
            return True
        if now < self._next_try:
            return False
        self._next_try = now + self._probe
        return True

    def failed(self, now: float) -> None:
        """Count a try that failed at time `now`."""
        self._failures += 1
        self._next_try = now + self._probe

    def succeeded(self) -> None:
        """Close after a try that succeeded."""
        self._failures = 0
