"""Find free addresses: the requested one, then the following ports, with any free port in place of a taken one.

A process listens on its port seconds after the port was found. Until then, and while the process restarts, the port is
reserved: no other system on this machine finds it, and the kernel assigns it to no outgoing connection. "Any free port"
is below 32768, outside the range that the kernel assigns automatically (Linux: ip_local_port_range).
"""

import random
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

from specdec.errors import ConfigError
from specdec.serving.addresses import join_address, listen, split_address

_ANY = range(15000, 30000)
_TRIES = 100


class Reservations:
    """Addresses reserved for the children of this process while it runs; Linux only.

    Each reservation is an abstract Unix socket (unix(7)), whose name only one socket of a network namespace can have,
    and a TCP socket that is bound to the port and does not listen. The kernel releases both when the process ends.
    """

    def __init__(self) -> None:
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.close()

    def take(self, address: str, listener: socket.socket) -> None:
        """Reserve the address of a listener, which stops listening. Raises OSError if it is reserved already."""
        if sys.platform != "linux":
            return
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0specdec-up/{address}")
        except OSError:
            holder.close()
            raise
        self._held.enter_context(holder)
        listener.shutdown(socket.SHUT_RDWR)  # the socket stays bound, and a child can listen on the port
        self._held.enter_context(listener.dup())


@dataclass(frozen=True, slots=True)
class Wanted:
    """Request for addresses of one kind."""

    option: str
    """Command-line option of the first address."""
    base: str
    """The first address, `host:port`; port 0 takes any free ports."""
    count: int
    exact: bool = True
    """Whether a taken first address is an error; else any free port of the host replaces it."""


def allot(wanted: Sequence[Wanted], reserved: Reservations | None = None) -> list[list[str]]:
    """Find the addresses of each kind. All are different, were free when tried, and are reserved.

    The first addresses of all kinds are taken before the ports that follow them.

    Args:
        wanted: the request for each kind.
        reserved: holds the reservations; None reserves the addresses until all are found.

    Raises:
        ConfigError: a first address that must be exact is taken, or cannot be listened on.
    """
    with ExitStack() as held:
        found = _Finder(reserved or held.enter_context(Reservations()), held)
        first = [found.first(each) if each.count else None for each in wanted]
        return [found.count_up(each, base) for each, base in zip(wanted, first, strict=True)]


def free(host: str) -> int:
    """A port of `host` that is free now."""
    listener, bound = _listen(host, 0)
    listener.close()
    return split_address(bound)[1]


@dataclass(frozen=True, slots=True)
class _Finder:
    """Reserves free addresses, and holds their sockets until all are found."""

    reserved: Reservations
    held: ExitStack

    def first(self, wanted: Wanted) -> str:
        host, port = split_address(wanted.base)
        if not wanted.exact:
            return self._next(host, port)
        try:
            return self._hold(host, port)
        except OSError as error:
            raise ConfigError(
                f"{wanted.base}: {error.strerror}; choose another with {wanted.option} HOST:PORT"
            ) from error

    def count_up(self, wanted: Wanted, base: str | None) -> list[str]:
        if base is None:
            return []
        host, port = split_address(base)
        return [base, *(self._next(host, port + step) for step in range(1, wanted.count))]

    def _next(self, host: str, port: int) -> str:
        """Hold `port`, or any free port if it is taken or out of range."""
        with suppress(OSError):
            return self._hold(host, port if port < 65536 else 0)
        return self._hold(host, 0)

    def _hold(self, host: str, port: int) -> str:
        """Hold `port`, or any free port for 0, and return the address; raises OSError if it is taken."""
        for _ in range(_TRIES if port == 0 else 1):
            listener, bound = _listen(host, port)
            self.held.enter_context(listener)
            try:
                self.reserved.take(bound, listener)
            except OSError as error:
                taken = error
                continue
            return bound
        raise taken


def _listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Listen on `port`, or on any free port for 0."""
    for any_port in random.sample(_ANY, _TRIES) if port == 0 else ():
        with suppress(OSError):
            return listen(join_address(host, any_port))
    return listen(join_address(host, port))
