"""Addresses as `host:port`: check, split, join, and listen on them. An IPv6 host is in brackets, as in `[::1]:8000`."""

import re
import socket
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

_ANY_IPV4 = "0.0.0.0"
_ANY_IPV6 = IPv6Address("::")
_NAME = re.compile(r"[^:\[\]/\s]+")
"""A host name or an IPv4 address."""


def check_address(value: str) -> str:
    """Return the value if it is `host:port`; otherwise raise ValueError."""
    host, colon, port = value.rpartition(":")
    if not (colon and port.isdecimal() and int(port) < 65536 and (_NAME.fullmatch(host) or _is_ipv6(host))):
        hint = ", with an IPv6 host in brackets as in [::1]:8000" if value.count(":") > 1 else ""
        raise ValueError(f"must be host:port{hint}, got {value!r}")
    return value


def _is_ipv6(host: str) -> bool:
    """Whether a host is an IPv6 address in brackets."""
    try:
        return host.startswith("[") and host.endswith("]") and ip_address(host[1:-1]).version == 6
    except ValueError:
        return False


def _on_loopback(value: Any) -> Any:
    """Return `127.0.0.1:port` for a bare port, and other values unchanged."""
    return f"127.0.0.1:{value}" if re.fullmatch(r"[0-9]{1,5}", str(value)) else value


Address = Annotated[str, BeforeValidator(_on_loopback), AfterValidator(check_address)]
"""`host:port`. Port 0 picks a free port; a bare port means 127.0.0.1."""


def parse_address(value: str) -> str:
    """Return the address in a text; raise ValueError if it has none."""
    return check_address(_on_loopback(value))


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an Address, without the brackets of an IPv6 host."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_mapping(host: str) -> str:
    """Return the IPv4 address of a client that an IPv6 socket names `::ffff:a.b.c.d`, and other hosts unchanged."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or host) if isinstance(address, IPv6Address) else host


def is_loopback(address: str) -> bool:
    """Whether only processes on this machine can reach the address."""
    host, _ = split_address(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(address: str, backlog: int = 128) -> tuple[socket.socket, str]:
    """Listen on an address. Return the socket and the bound address, with the actual port.

    `[::]` accepts IPv4 too. It becomes `0.0.0.0` on a kernel without IPv6, as many containers have it.

    Raises:
        OSError: the address cannot be bound; its `strerror` does not repeat the address.
    """
    host, port = split_address(address)
    both = ":" in host and IPv6Address(host) == _ANY_IPV6
    if both and not socket.has_dualstack_ipv6():
        host, both = _ANY_IPV4, False
    try:
        family = _family(host)
        listener = socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(error.errno, str(error.strerror).partition(" (while ")[0]) from error
    return listener, join_address(host, listener.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    """Return IPv6 for an IPv6 address, and for a name that has no IPv4 address."""
    families = {family for family, *_ in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
