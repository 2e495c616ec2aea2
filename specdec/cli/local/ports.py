"""Finds free addresses: the one that was asked for, then the ports that follow it, and any free one for a taken one.

A port that was found free is bound a moment later, by the process that it is for. Until then, and while that process is
started again, it is reserved among the systems of this machine, so two that start at once never meet on a port. Any
free port is one that the kernel gives to nobody who asks it for any: those begin at 32768 (Linux: ip_local_port_range).
"""

import random
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

from specdec.errors import ConfigError
from specdec.serving.discovery import join_address
from specdec.serving.settings import split_address

_ANY = range(15000, 30000)
_TRIES = 100


class Reservations:
    """Addresses that this process alone hands to its children, for as long as it lives; on Linux.

    Each is the name of a Unix socket that is no file (unix(7), abstract): the kernel gives a name to one socket of a
    network namespace, and takes it back when the process ends, however it ends.
    """

    def __init__(self) -> None:
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.close()

    def take(self, host: str, port: int) -> None:
        """Reserve an address; raises OSError when another process has it."""
        if sys.platform != "linux":
            return
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0specdec-up/{host}:{port}")
        except OSError:
            holder.close()
            raise
        self._held.enter_context(holder)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many addresses of one kind are wanted, and which is the first."""

    option: str
    """The option with which a person chooses another first address."""
    base: str
    """The first address, `host:port`; with port 0, any free ports are taken."""
    count: int
    exact: bool = True
    """Whether a first address that is taken is a mistake; otherwise any free port of that host replaces it."""


def allot(wanted: Sequence[Wanted], reserved: Reservations | None = None) -> list[list[str]]:
    """The addresses of each kind; all are different, were free when they were tried, and are reserved.

    The first address of each kind is what was asked for; those are taken before the ports that follow them.

    Args:
        wanted: how many of each kind.
        reserved: keeps the addresses; None reserves them until all are found.

    Raises:
        ConfigError: a first address that has to be exact is taken, or one cannot be listened on.
    """
    with ExitStack() as held:
        found = _Finder(reserved or held.enter_context(Reservations()), held)
        first = [found.first(each) if each.count else None for each in wanted]
        return [found.count_up(each, base) for each, base in zip(wanted, first, strict=True)]


def free(host: str) -> int:
    """A port of `host` at which nothing listens now."""
    with _listen(host, 0) as taken:
        return int(taken.getsockname()[1])


@dataclass(frozen=True, slots=True)
class _Finder:
    """Reserves free addresses, and listens at them until all are found."""

    reserved: Reservations
    held: ExitStack

    def first(self, wanted: Wanted) -> int:
        host, port = split_address(wanted.base)
        if not wanted.exact:
            return self._next(host, port)
        try:
            return self._hold(host, port)
        except OSError as error:
            why = str(error.strerror).partition(" (while ")[0]  # what follows repeats the address
            raise ConfigError(f"{wanted.base}: {why}; choose another with {wanted.option} HOST:PORT") from error

    def count_up(self, wanted: Wanted, base: int | None) -> list[str]:
        if base is None:
            return []
        host, _ = split_address(wanted.base)
        rest = (self._next(host, base + step) for step in range(1, wanted.count))
        return [join_address(host, port) for port in (base, *rest)]

    def _next(self, host: str, port: int) -> int:
        """Hold `port`, or any free port when it is taken or out of range."""
        with suppress(OSError):
            return self._hold(host, port if port < 65536 else 0)
        return self._hold(host, 0)

    def _hold(self, host: str, port: int) -> int:
        """Hold `port`, or any free one for 0; raises OSError when it is taken."""
        for _ in range(_TRIES if port == 0 else 1):
            listener = self.held.enter_context(_listen(host, port))
            number = int(listener.getsockname()[1])
            try:
                self.reserved.take(host, number)
            except OSError as error:
                taken = error
                continue
            return number
        raise taken


def _listen(host: str, port: int) -> socket.socket:
    """Listen at `port`, or at any free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for any_port in random.sample(_ANY, _TRIES) if port == 0 else ():
        with suppress(OSError):
            return socket.create_server((host, any_port), family=family)
    return socket.create_server((host, port), family=family)
