"""A real session store's server that can be killed and started again on the same folder, and keeps what it said it has.

`SPECDEC_TEST_REDIS=/path/to/redis-server` runs these tests against that server; without it, against the one that
`specdec up` would start.
"""

import os
import time
from pathlib import Path

from specdec.cli import valkey
from specdec.cli.processes import ChildCommand, Children
from specdec.cli.valkey import Binary


def binary() -> Binary:
    """The server under test."""
    given = os.environ.get("SPECDEC_TEST_REDIS")
    if not given:
        return valkey.resolve()
    version = valkey.version_of(Path(given))
    assert version, f"{given} does not run"
    return Binary(Path(given), version, "SPECDEC_TEST_REDIS")


class Server:
    """What `specdec up` would embed; `spawn` from the main thread only."""

    def __init__(self, folder: Path, children: Children) -> None:
        self._children = children
        self._embedded = valkey.embed(binary(), folder)
        self._log = folder / "valkey.log"
        self.url = self._embedded.url
        self.start()

    def spawn(self) -> None:
        self._child = self._children.start(
            ChildCommand("valkey", "redis", self._embedded.argv, self._log, ""), os.environ
        )

    def start(self) -> None:
        self.spawn()
        deadline = time.monotonic() + 30
        while not valkey.answers(self.url):
            assert self._child.exit_status is None, self._child.log_tail()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        self._child.process.kill()
        self._child.process.wait()
