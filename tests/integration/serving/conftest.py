"""Fixtures for servers on loopback."""

import pytest

from specdec.cli.local import ports


@pytest.fixture
def free_port() -> int:
    """A port on which nothing listens now."""
    return ports.free("127.0.0.1")
