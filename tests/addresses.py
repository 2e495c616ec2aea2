"""Addresses for servers that cannot say themselves where they listen."""

import socket


def free_addresses(count: int) -> list[str]:
    """Loopback addresses at which nothing listens now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{opened.getsockname()[1]}" for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()
