"""SIGINT and SIGTERM as a flag to check: nothing is interrupted half-way, so nothing is left half done."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_POLL_SECONDS = 0.05


class StopRequested(Exception):
    """A signal asked for the end."""


class Stop:
    """A flag that the first signal sets.

    It is polled, because a signal handler must not use locks, and so neither events nor conditions.
    """

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        """Set the flag, as a signal does."""
        self._requested = True

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`, or return True soon after the flag is set."""
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
        """Call `callback`, on another thread, when the flag is set while the context lasts."""
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
    """Turn the signals into a Stop inside the context; a second signal changes nothing."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.request()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
