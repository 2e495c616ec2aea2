"""Fork servers shared by all systems of a test run, so that slow modules are imported once."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from specdec.cli.local import child_process, forked, plan

_SECONDS = 300.0
"""Seconds allowed for the imports on a busy machine."""


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[None]:
    """Provide fork servers with the services' imports done to every process started from now on."""
    if not forked.is_supported():
        yield
        return
    with ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="fork-"))
        for preload in set(plan.PRELOAD.values()):
            running.enter_context(_listening(preload, {**os.environ, forked.SHARED: folder}))
        running.enter_context(pytest.MonkeyPatch.context()).setenv(forked.SHARED, folder)
        yield


@contextmanager
def _listening(modules: tuple[str, ...], environment: dict[str, str]) -> Iterator[None]:
    path = forked.shared_socket(modules, environment)
    assert path is not None
    command = child_process.tied(sys.executable, "-m", "specdec.cli.local.fork_server", str(path), *modules)
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + _SECONDS
        while not path.exists():
            assert process.poll() is None, "the fork server ended"
            assert time.monotonic() < deadline, "the fork server imports for too long"
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()
