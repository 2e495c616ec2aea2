"""Child processes that cannot outlive this process: they are stopped in order, and killed if this process is killed.

Start children from the main thread only: the kernel ties a child to the thread that started it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from specdec.cli.local import forked
from specdec.cli.local.forked import ForkedProcess, ForkServer

_POLL = 0.02
_ERROR = "error: "
_NOISE = re.compile(r"nanobind: | - leaked | - \.\.\. skipped remainder|See https://nanobind\.")
"""Lines that Triton's bindings write when a process ends early, unrelated to the cause."""


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """Command of a child process."""

    name: str
    """Unique name among the children, for example `drafter-1`."""
    role: str
    """Role, for example `drafter`; the children of the role started last are stopped first."""
    argv: Sequence[str]
    log: Path
    """File that the output is appended to."""
    restart: str
    """Command line to restart the process by hand."""
    preload: tuple[str, ...] = ()
    """Modules that take long to import and start nothing. If forking is supported, all processes with the same preload
    are forked from one that has imported them. Commands other than `python -m MODULE` are run normally."""
    nice: int = 0
    """Niceness, 0 to 19; above 0, the process also leaves the first of several processors to others."""


@dataclass(frozen=True, slots=True)
class Child:
    """A child process that was started."""

    command: ChildCommand
    environment: Mapping[str, str]
    process: "subprocess.Popen[bytes] | ForkedProcess"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status of the process, negative for a signal; None while it runs."""
        return self.process.poll()

    def error(self) -> str:
        """The last `error:` line of the log, without the prefix; empty for none."""
        errors = [line for line in self._log_lines() if line.startswith(_ERROR)]
        return errors[-1].removeprefix(_ERROR) if errors else ""

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log, without lines that libraries write at the end of a process."""
        return "\n".join([line for line in self._log_lines() if not _NOISE.match(line)][-lines:])

    def _log_lines(self) -> list[str]:
        return self.command.log.read_text(encoding="utf-8", errors="replace").splitlines()


class Children:
    """All child processes; leaving the context ends them."""

    def __init__(self, grace: float = 8.0) -> None:
        """`grace` is the time in seconds between SIGTERM and SIGKILL."""
        self._grace = grace
        self._children: list[Child] = []
        self._servers: dict[tuple[str, ...], ForkServer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def all(self) -> tuple[Child, ...]:
        """The children in start order."""
        return tuple(self._children)

    def start(self, command: ChildCommand, environment: Mapping[str, str]) -> Child:
        """Start a child process.

        Raises:
            OSError: the log cannot be written, or the interpreter cannot be run.
        """
        child = self._started(command, environment)
        self._children.append(child)
        return child

    def restart(self, ended: Child) -> Child:
        """Restart a child that has ended, at its place in the order; raises like `start`."""
        child = self._started(ended.command, ended.environment)
        self._children[self._children.index(ended)] = child
        return child

    def stop(self) -> None:
        """End the children: first the role started last, while the others still serve it, then all others at once.

        A child that does not end in time is killed.
        """
        for server in self._servers.values():
            server.stop_importing()
        last = self._children[-1].command.role if self._children else ""
        front = [child for child in self._children if child.command.role == last]
        _end(front, self._grace)
        _end([child for child in self._children if child not in front], self._grace)
        self._children = []
        for server in self._servers.values():
            server.close()
        self._servers = {}

    def _started(self, command: ChildCommand, environment: Mapping[str, str]) -> Child:
        runs_a_module = tuple(command.argv[:2]) == (sys.executable, "-m")
        if not (command.preload and runs_a_module and forked.is_supported()):
            return Child(command, environment, forked.spawned(command.argv, environment, command.log, command.nice))
        server = self._servers.get(command.preload)
        if server is not None and server.status is not None:
            server.close()
            server = None
        if server is None:
            server = self._servers[command.preload] = ForkServer(command.preload, environment, command.log)
        _, _, module, *arguments = command.argv
        process = server.start(command.name, module, arguments, environment, command.log, command.nice)
        return Child(command, environment, process)


def _end(group: Sequence[Child], grace: float) -> None:
    for child in group:
        _signal(child, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(child.exit_status is None for child in group):
        time.sleep(_POLL)
    for child in group:
        _signal(child, signal.SIGKILL)
        child.process.wait()


def _signal(child: Child, number: signal.Signals) -> None:
    """Signal the process group of a child, which includes its own children, unless it has ended."""
    if child.exit_status is None:
        with suppress(ProcessLookupError):  # it may end meanwhile, and a fork server reaps it at once
            os.killpg(child.pid, number)
