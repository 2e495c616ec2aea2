"""The script that tries an edge recognizes ports that open or close late; this runs without a cluster."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "edge.py"


@contextmanager
def _port(listens: bool) -> Iterator[int]:
    """Reserve a port of loopback, which listens or not."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        if listens:
            reserved.listen(100)
        yield reserved.getsockname()[1]


def _command(port: int, wanted: str, tries: str, host: str = "127.0.0.1") -> subprocess.Popen[str]:
    environment = os.environ | {"HOST": host, "PORT": str(port), "WANTED": wanted, "TRIES": tries}
    return subprocess.Popen((sys.executable, SCRIPT), env=environment, text=True)


@pytest.mark.parametrize(
    ("listens", "wanted", "status"), [(True, "open", 0), (True, "closed", 1), (False, "closed", 0), (False, "open", 1)]
)
def test_an_edge_is_open_or_closed(listens: bool, wanted: str, status: int) -> None:
    with _port(listens) as port, _command(port, wanted, "5") as edge:
        assert edge.wait(60) == status


def test_too_few_connections_prove_nothing() -> None:
    with _port(listens=True) as port, _command(port, "open", "3") as edge:
        assert edge.wait(60) == 1


def test_an_edge_that_opens_late_is_open() -> None:
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        with _command(late.getsockname()[1], "open", "100") as edge:
            time.sleep(1)
            late.listen(100)
            assert edge.wait(60) == 0


def test_a_name_that_is_not_resolved_is_closed() -> None:
    with _command(1, "closed", "5", host="nowhere.invalid") as edge:
        assert edge.wait(60) == 0
