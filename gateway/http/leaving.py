"""Clients that have closed their sending half: some wait for the answer, others have left."""

import asyncio
import socket
from collections.abc import Callable

_DELAYS = (0.4, 4.0, 40.0, 400.0)
"""Seconds before each probe of a half-closed connection; few, because some clients count interim answers."""
_ANSWERED = 0.1
"""Seconds to wait after a probe for the reset from a client that has left."""
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"


class LeavingClient:
    """Probes a half-closed connection, and aborts it if the client has left."""

    def __init__(self, transport: asyncio.Transport, waiting: Callable[[], bool], begun: bool) -> None:
        """Watch a connection.

        Args:
            transport: half-closed connection.
            waiting: returns whether an HTTP/1.1 answer is due and has not begun.
            begun: whether the work on that answer has begun; otherwise the first probe is sent at once.
        """
        self._transport = transport
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()
        self._delays = list(_DELAYS[1:] if not begun else _DELAYS)
        self._held: Callable[[], None] | None = None
        self._probing = not begun and waiting()
        """Whether the client may have left before its request began."""
        self._timer = self._loop.call_later(0.0 if self._probing else self._delays.pop(0), self._probe)

    def close(self) -> None:
        """Stop probing."""
        self._timer.cancel()
        self._held = None

    def when_known(self, begin: Callable[[], None]) -> None:
        """Call `begin` unless the client has left: at once, or when the first probe is not answered with a reset."""
        if self._probing:
            self._held = begin
        else:
            begin()

    def _probe(self) -> None:
        if not self._transport.is_closing() and self._waiting():
            self._transport.write(_PROBE)
            self._timer = self._loop.call_later(_ANSWERED, self._look)

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        held, self._held, self._probing = self._held, None, False
        if held is not None:
            held()
        if self._delays:
            self._timer = self._loop.call_later(self._delays.pop(0), self._probe)
