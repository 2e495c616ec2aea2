"""What a server on loopback needs."""

import socket

import pytest


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
