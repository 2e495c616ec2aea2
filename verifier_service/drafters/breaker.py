"""When to stop waiting for somebody who did not answer, and when to try again."""


class Breaker:
    """Open after `threshold` failures in a row; open, it allows one try every `probe` seconds; a success closes it."""

    def __init__(self, threshold: int, probe: float) -> None:
        self._threshold = threshold
        self._probe = probe
        self._failures = 0
        self._next_try = 0.0

    def allows(self, now: float) -> bool:
        """Whether to try at time `now`; a permitted try while open puts the next one off."""
        if self._failures < self._threshold:
            return True
        if now < self._next_try:
            return False
        self._next_try = now + self._probe
        return True

    def failed(self, now: float) -> None:
        """A try failed at time `now`."""
        self._failures += 1
        self._next_try = now + self._probe

    def succeeded(self) -> None:
        """A try succeeded."""
        self._failures = 0
