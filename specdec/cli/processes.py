"""Child processes that cannot outlive this one: spawned apart from the terminal, stopped in order, never left behind.

Spawn from the main thread only: the kernel ties a child to the thread that made it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from specdec.cli import tether

_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Command:
    """One process to run."""

    name: str
    """Unique among the children, as in `drafter-1`."""
    role: str
    argv: Sequence[str]
    log: Path
    """Where its output goes, appended."""
    again: str
    """What a person types to start it again."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was started."""

    command: Command
    process: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def exit_status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self.process.poll()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines it wrote."""
        text = self.command.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


class Children:
    """Every process this one started; leaving the context ends them all."""

    def __init__(self, grace: float = 8.0) -> None:
        """Take the seconds a child has between being asked to end and being killed."""
        self._grace = grace
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def all(self) -> tuple[Child, ...]:
        """In the order they were started."""
        return tuple(self._children)

    def start(self, command: Command, environment: Mapping[str, str]) -> Child:
        """Start one.

        Raises:
            OSError: the log cannot be written or the interpreter cannot be run.
        """
        tied = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *command.argv]
        with command.log.open("ab") as log:
            process = subprocess.Popen(
                tied,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # the terminal's Ctrl-C is ours to pass on, in order
            )
        child = Child(command, process)
        self._children.append(child)
        return child

    def stop(self) -> None:
        """End them: first the role started last, while what it needs is still there, then all the others at once.

        One that does not go in time is killed.
        """
        last = self._children[-1].command.role if self._children else ""
        front = [child for child in self._children if child.command.role == last]
        _end(front, self._grace)
        _end([child for child in self._children if child not in front], self._grace)
        self._children = []


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
    """Signal the child and whatever it started itself, which shares its process group; nothing once it was reaped."""
    if child.exit_status is None:
        os.killpg(child.pid, number)
