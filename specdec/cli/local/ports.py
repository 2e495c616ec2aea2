"""Finds free addresses: the one that was asked for, then the ports that follow it, and any free one for a taken one.

A port that was found free is bound a moment later, by the process that it is for. Until then nobody holds it, so any
free port is one that the kernel gives to nobody who asks it for any: those begin at 32768 (Linux: ip_local_port_range).
"""

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from specdec.errors import ConfigError
from specdec.serving.discovery import join_address
from specdec.serving.settings import split_address

_ANY = range(15000, 30000)
_TRIES = 100


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


def allot(wanted: Sequence[Wanted]) -> list[list[str]]:
    """The addresses of each kind; all are different and were free when they were tried.

    The first address of each kind is what was asked for; those are taken before the ports that follow them.

    Raises:
        ConfigError: a first address that has to be exact is taken, or one cannot be listened on.
    """
    with ExitStack() as held:
        first = [_bind_first(each, held) if each.count else None for each in wanted]
        return [_count_up(each, base, held) for each, base in zip(wanted, first, strict=True)]


def free(host: str) -> int:
    """A port of `host` at which nothing listens now."""
    with _listen(host, 0) as taken:
        return int(taken.getsockname()[1])


def _bind_first(wanted: Wanted, held: ExitStack) -> int | None:
    host, port = split_address(wanted.base)
    if not wanted.exact:
        return _bind_next(host, port, held)
    try:
        return int(held.enter_context(_listen(host, port)).getsockname()[1])
    except OSError as error:
        why = str(error.strerror).partition(" (while ")[0]  # what follows repeats the address
        raise ConfigError(f"{wanted.base}: {why}; choose another with {wanted.option} HOST:PORT") from error


def _count_up(wanted: Wanted, base: int | None, held: ExitStack) -> list[str]:
    if base is None:
        return []
    host, _ = split_address(wanted.base)
    rest = (_bind_next(host, base + step, held) for step in range(1, wanted.count))
    return [join_address(host, port) for port in (base, *rest)]


def _bind_next(host: str, port: int, held: ExitStack) -> int:
    """Hold `port`, or any free port when it is taken or out of range."""
    try:
        listener = _listen(host, port if port < 65536 else 0)
    except OSError:
        listener = _listen(host, 0)
    return int(held.enter_context(listener).getsockname()[1])


def _listen(host: str, port: int) -> socket.socket:
    """Listen at `port`, or at any free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for any_port in random.sample(_ANY, _TRIES) if port == 0 else ():
        with suppress(OSError):
            return socket.create_server((host, any_port), family=family)
    return socket.create_server((host, port), family=family)
