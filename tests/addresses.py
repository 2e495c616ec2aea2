"""Addresses for servers that cannot say themselves where they listen."""

from specdec.cli.local.ports import Wanted, allot


def free_addresses(count: int) -> list[str]:
    """Loopback addresses at which nothing listens now."""
    return [address for (address,) in allot([Wanted("", "127.0.0.1:0", 1)] * count)]
