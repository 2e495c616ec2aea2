"""Which addresses the processes get: the asked-for one first, then counted up, a free one where the count is taken."""

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from specdec.errors import ConfigError
from specdec.serving.settings import split_address


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many addresses of one kind, and where to begin."""

    option: str
    """The option a person changes when the first is taken."""
    base: str
    """`host:port`; port 0 takes free ones."""
    count: int


def allot(wanted: Sequence[Wanted]) -> list[list[str]]:
    """The addresses of each kind, all different, all free a moment ago.

    The first of each kind is exactly what was asked for; the first of every kind is settled before any is counted up.

    Raises:
        ConfigError: a first address is taken or cannot be listened on.
    """
    with ExitStack() as held:
        first = [_bind_base(each, held) if each.count else None for each in wanted]
        return [_count_up(each, base, held) for each, base in zip(wanted, first, strict=True)]


def free(host: str) -> int:
    """A port nobody listens on."""
    with _bound(host, 0) as taken:
        return int(taken.getsockname()[1])


def _bind_base(wanted: Wanted, held: ExitStack) -> int | None:
    host, port = split_address(wanted.base)
    try:
        return int(held.enter_context(_bound(host, port)).getsockname()[1])
    except OSError as error:
        raise ConfigError(f"{wanted.base} {_why(error)}: choose another with {wanted.option} HOST:PORT") from error


def _count_up(wanted: Wanted, base: int | None, held: ExitStack) -> list[str]:
    if base is None:
        return []
    host, _ = split_address(wanted.base)
    rest = (_bind_near(host, base + step, held) for step in range(1, wanted.count))
    return [_address(host, port) for port in (base, *rest)]


def _bind_near(host: str, port: int, held: ExitStack) -> int:
    """Hold `port`, or any free one when it is taken or out of range."""
    try:
        bound = _bound(host, port if port < 65536 else 0)
    except OSError:
        bound = _bound(host, 0)
    return int(held.enter_context(bound).getsockname()[1])


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


def _why(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "is taken"
        case errno.EACCES:
            return "may not be listened on by this user"
        case _:
            return "is not an address of this machine"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
