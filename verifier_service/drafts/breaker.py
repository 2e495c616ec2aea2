"""Circuit breaker for waits on a drafter that does not answer."""


class Breaker:
    """Circuit breaker that opens after `threshold` consecutive failures.

    While open, it allows one try every `probe` seconds. A success closes it. Times are in seconds of a monotonic clock
    that the caller reads.
    """

    def __init__(self, threshold: int, probe: float) -> None:
        self._threshold = threshold
        self._probe = probe
        self._failures = 0
        self._next_try = 0.0

    def allows(self, now: float) -> bool:
        """Whether a try is allowed at time `now`. A try allowed while open postpones the next one by `probe`."""
        if self._failures < self._threshold:
            return True
        if now < self._next_try:
            return False
        self._next_try = now + self._probe
        return True

    def failed(self, now: float) -> None:
        """Record a try that failed at time `now`."""
        self._failures += 1
        self._next_try = now + self._probe

    def succeeded(self) -> None:
        """Record a successful try, which closes the breaker."""
        self._failures = 0
