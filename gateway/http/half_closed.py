"""Clients that have shut their sending half: one waits for its answer, another has left, and both look alike.

A client that has left answers the next bytes with a reset. So a client that waits for an answer that has not begun is
sent `100 Continue`, which every client of HTTP/1.1 skips, and its socket is looked at soon after.
"""

import asyncio
import socket
from collections.abc import Callable

_DELAYS = (0.4, 4.0, 40.0, 400.0)
"""Seconds before each probe; some clients count interim answers, so they are few."""
_ANSWERED = 0.1
"""Seconds after a probe in which the reset of a client that has left arrives."""
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"


class LeavingClient:
    """Watches a half-closed connection until it is closed, and aborts it when the client has left."""

    def __init__(self, transport: asyncio.Transport, waiting: Callable[[], bool]) -> None:
        """`waiting` says whether an answer to HTTP/1.1 is due that has not begun."""
        self._transport = transport
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()
        self._delays = list(_DELAYS)
        self._timer = self._loop.call_later(self._delays.pop(0), self._probe)

    def close(self) -> None:
        """Watch no more."""
        self._timer.cancel()

    def _probe(self) -> None:
        if not self._transport.is_closing() and self._waiting():
            self._transport.write(_PROBE)
            self._timer = self._loop.call_later(_ANSWERED, self._look)

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
        elif self._delays:
            self._timer = self._loop.call_later(self._delays.pop(0), self._probe)
