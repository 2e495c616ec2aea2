"""The system of compose.yaml in containers, if SPECDEC_CONTAINERS is set and the images are built.

`make images containers-test` does both.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.__main__ import IMAGES, SCRATCH
from images.engine import Podman, lacking
from tests.containers.compose import COMMAND, Compose
from tests.containers.network import own_network

NEEDED = ("gateway", "drafter", "verifier", "valkey")


@pytest.fixture(scope="session")
def podman() -> Podman:
    """The container engine, whose store has the images."""
    if not os.environ.get("SPECDEC_CONTAINERS"):
        pytest.skip("SPECDEC_CONTAINERS is not set; `make containers-test` sets it")
    if reason := lacking():
        pytest.skip(reason)
    engine = Podman(SCRATCH)
    if missing := [name for name in NEEDED if not engine.has(IMAGES[name].name)]:
        pytest.skip(f"no image of {', '.join(missing)}: `make images` builds them")
    return engine


@pytest.fixture(scope="session")
def network(podman: Podman) -> Iterator[Path]:
    """A network namespace for this process and its containers."""
    try:
        with own_network() as namespace:
            yield namespace
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def compose(podman: Podman, network: Path) -> Iterator[Compose]:
    """The whole system, started but not yet healthy."""
    if not COMMAND.exists():
        pytest.skip("no podman-compose: `make containers-test` installs it")
    made = Compose(podman, f"specdec-{os.getpid()}")
    try:
        made("up", "--detach", "--no-build")
        yield made
    finally:
        made("down", "--volumes", "--timeout", "20")
