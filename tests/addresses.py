"""Free loopback addresses, for servers that cannot report the port they listen on."""

from specdec.cli.local.ports import Wanted, allot


def free_addresses(count: int) -> list[str]:
    """Return loopback addresses on which nothing listens now."""
    return [address for (address,) in allot([Wanted("", "127.0.0.1:0", 1)] * count)]
