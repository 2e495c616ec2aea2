"""Restart children that end, with exponential back-off and a limit on restarts."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from specdec.cli.exit_codes import StartFailed
from specdec.cli.local.processes import Child, Children


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Limit and back-off of restarts."""

    limit: int
    """Most restarts in a row."""
    pause: float = 0.5
    """Seconds before the first restart; each further pause in a row is twice as long."""
    longest: float = 30.0
    """Longest pause, in seconds."""
    settled: float = 60.0
    """Seconds of running after which a process has recovered: its next end counts as its first."""


@dataclass(slots=True)
class _Watched:
    child: Child
    started: float
    """Start time, in seconds of the clock."""
    ends: int = 0
    """Number of restarts in a row."""
    due: float | None = None
    """Time of the next restart; None while the child runs, and after it was given up."""
    ended: bool = False

    @property
    def is_given_up(self) -> bool:
        return self.ended and self.due is None


class Supervisor:
    """Watches the children that exist at its creation. Use it on the main thread, which starts children."""

    def __init__(
        self,
        children: Children,
        policy: RestartPolicy,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = children
        self._policy = policy
        self._say = say
        self._clock = clock
        self._watched = [_Watched(child, clock()) for child in children.all]

    def look(self) -> bool:
        """Report each child that ended, and restart each child whose pause is over.

        Returns:
            Whether a child was restarted.

        Raises:
            StartFailed: every child has ended and was given up.
        """
        for watched in self._watched:
            if not watched.ended and watched.child.exit_status is not None:
                self._note_end(watched, _how(watched.child.exit_status))
        due = [watched for watched in self._watched if watched.due is not None and watched.due <= self._clock()]
        started = [self._start(watched) for watched in due]
        if all(watched.is_given_up for watched in self._watched):
            raise StartFailed("every process has ended")
        return any(started)

    def _note_end(self, watched: _Watched, how: str) -> None:
        now, policy, command = self._clock(), self._policy, watched.child.command
        if now - watched.started >= policy.settled:
            watched.ends = 0
        watched.ended, watched.due = True, None
        if watched.ends >= policy.limit:
            times = f", {watched.ends + 1} times in a row" if watched.ends else ""
            self._say(
                f"{command.name} ended ({how}){times}; it stays down and the rest goes on. "
                f"Start it again: {command.restart} (its log: {command.log})"
            )
            return
        pause = min(policy.pause * 2**watched.ends, policy.longest)
        watched.ends, watched.due = watched.ends + 1, now + pause
        self._say(f"{command.name} ended ({how}); it is started again in {pause:g} s (its log: {command.log})")

    def _start(self, watched: _Watched) -> bool:
        watched.started = self._clock()
        try:
            watched.child = self._children.restart(watched.child)
        except OSError as error:
            self._note_end(watched, f"it could not be started: {error.strerror}")
            return False
        watched.ended, watched.due = False, None
        self._say(f"{watched.child.command.name} is started again (pid {watched.child.pid})")
        return True


def _how(status: int) -> str:
    """Describe an exit status."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
