"""A clock that moves only when a test moves it."""


class Clock:
    """A clock in seconds, set by the test."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
