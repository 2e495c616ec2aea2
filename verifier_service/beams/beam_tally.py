"""Counts the beam searches of a process that run and that wait for memory, and limits those that wait."""

from specdec.errors import QueueFull
from verifier_service.metrics import BeamMetrics


class BeamTally:
    """Counts the searches of a process, and publishes them. All methods run on the event loop."""

    def __init__(self, max_waiting: int, metrics: BeamMetrics) -> None:
        """Create a tally without searches; at most `max_waiting` may wait for memory when one more comes."""
        self._max_waiting = max_waiting
        self.metrics = metrics
        self._waiting = self._running = self._beams = 0

    def enter(self, width: int) -> "BeamPlace":
        """Add a search that waits for memory.

        Raises:
            QueueFull: too many searches wait already.
        """
        if self._waiting >= self._max_waiting:
            raise QueueFull(f"{self._max_waiting} beam searches are waiting already")
        return BeamPlace(self, width)

    def add(self, *, waiting: int = 0, running: int = 0, beams: int = 0) -> None:
        """Add to the numbers of waiting searches, running searches and running beams; each may be negative."""
        self._waiting, self._running = self._waiting + waiting, self._running + running
        self._beams += beams
        self.metrics.waiting.set(self._waiting)
        self.metrics.running.set(self._running)
        self.metrics.beams.set(self._beams)


class BeamPlace:
    """One search in the tally, from its arrival until `leave`."""

    def __init__(self, tally: BeamTally, width: int) -> None:
        self._tally = tally
        self._width = width
        self._holds = self._left = False
        tally.add(waiting=1)

    def hold(self) -> None:
        """Record that the search has memory."""
        if not (self._holds or self._left):
            self._holds = True
            self._tally.add(waiting=-1, running=1, beams=self._width)

    def wait(self) -> None:
        """Record that the search waits for memory."""
        if self._holds and not self._left:
            self._holds = False
            self._tally.add(waiting=1, running=-1, beams=-self._width)

    def leave(self) -> None:
        """Remove the search. Idempotent."""
        self.wait()
        if not self._left:
            self._left = True
            self._tally.add(waiting=-1)

    def passed(self, beams: int, proposed: int, steps: int) -> None:
        """Count a pass over running beams and proposed ones, which covered `steps` steps."""
        metrics = self._tally.metrics
        metrics.tokens.inc(beams * steps)
        metrics.proposed.inc(proposed)
        metrics.steps.inc(steps)
        metrics.accepted.inc(steps - 1)

    def found(self) -> None:
        """Count a search that is done."""
        self._tally.metrics.searches.inc()
