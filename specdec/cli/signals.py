"""SIGINT and SIGTERM as a value to look at: nothing is interrupted half-way, so nothing is left half-done."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK = 0.05


class StopRequested(Exception):
    """The person, or their supervisor, wants the process to end."""


class Stop:
    """Becomes true with the first signal.

    A plain flag, looked at often: locks, and with them events and conditions, must not be used in a signal handler.
    """

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        """Ask for the end, as a signal does."""
        self._requested = True

    def wait(self, seconds: float) -> bool:
        """Sleep, or return True soon after the end is asked for."""
        deadline = time.monotonic() + seconds
        while not self._requested and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK))
        return self._requested

    def check(self) -> None:
        """Return while nobody asked for the end.

        Raises:
            StopRequested: somebody did.
        """
        if self._requested:
            raise StopRequested

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have `callback` called, by another thread, if the end is asked for meanwhile."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK):
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
    """Turn the signals into a Stop; a repeated one changes nothing, for the end is bounded in time."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.request()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
