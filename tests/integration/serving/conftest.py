"""What a server on loopback needs."""

import pytest

from specdec.cli.local import ports


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on now."""
    return ports.free("127.0.0.1")
