"""SIGINT and SIGTERM as a flag that is polled, so that no operation is interrupted half-way."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_POLL_SECONDS = 0.05


class StopRequested(Exception):
    """A stop signal arrived."""


class Stop:
    """A flag that the first signal sets.

    The flag is polled, because a signal handler must not use locks, and therefore no events or conditions.
    """

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        """Set the flag, as a signal does."""
        self._requested = True

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`, or until shortly after the flag is set. Return the flag."""
        deadline = time.monotonic() + seconds
        while not self._requested and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_SECONDS))
        return self._requested

    def check(self) -> None:
        """Do nothing unless the flag is set.

        Raises:
            StopRequested: the flag is set.
        """
        if self._requested:
            raise StopRequested

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` on another thread if the flag is set within the context."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_SECONDS):
                if self._requested:
                    callback()
                    return

        watcher = threading.Thread(target=watch, name="stop-watcher", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turn signals into a `Stop` within the context; a second signal has no effect."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.request()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
