"""Free loopback addresses, for servers that cannot report the port they listen on, and a mark for tests of IPv6."""

import socket

import pytest

from specdec.cli.local.ports import Wanted, allot


def free_addresses(count: int) -> list[str]:
    """Return loopback addresses on which nothing listens now."""
    return [address for (address,) in allot([Wanted("", "127.0.0.1:0", 1)] * count)]


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


NEEDS_IPV6 = pytest.mark.skipif(not _has_ipv6(), reason="this kernel has no IPv6 loopback")
