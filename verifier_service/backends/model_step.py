"""Interface between the scheduling loop and a target: steps over waiting rows."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specdec.engine.kv.pool import KvMemory
from specdec.errors import InternalError
from verifier_service.backends.batch_plan import Outcome, Row, ScheduledChunk

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes since the last pass began."""

    ended: Sequence[str] = ()
    """KV names of the sequences that have ended."""
    rows: Sequence[Row] = ()
    """New rows of sequences that had none."""


class PendingChanges:
    """Queue of changes that no pass has taken. One thread calls `add`, another one `begin` and `take`."""

    def __init__(self) -> None:
        self._ended: deque[str] = deque()
        self._rows: deque[Row] = deque()

    def add(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Queue changes for the next pass."""
        self._rows.extend(rows)
        self._ended.extend(ended)

    def begin(self, rows: Sequence[Row]) -> Sequence[str]:
        """Begin a run with these rows, which replace pending rows; return the KV names of ended sequences."""
        ended = _taken(self._ended)
        over = {*ended, *(row.kv_name for row in rows)}
        self._rows.extend(row for row in _taken(self._rows) if row.kv_name not in over)
        return ended

    def take(self) -> Changes:
        """Remove and return all pending changes."""
        return Changes(_taken(self._ended), _taken(self._rows))


def _taken(pending: deque[_Item]) -> Sequence[_Item]:
    return [pending.popleft() for _ in range(len(pending))]


class RunAheadFlags:
    """Run-ahead flags: whether a pass may begin without the event loop, and which rows sessions have requested.

    The event loop writes them, and the thread that runs the passes reads them.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._asked: dict[str, int] = {}

    def stop(self) -> None:
        """Stop passes from running ahead, because a change must take part in the next pass."""
        self._stopped = True

    def go(self) -> None:
        """Allow passes to run ahead: all changes take part in the next pass."""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called after the last `go`."""
        return self._stopped

    def ask(self, row: Row) -> None:
        """Record that the session of a running row has requested it, so that another row may follow."""
        self._asked[row.kv_name] = row.goal

    def asked(self, row: Row) -> bool:
        """Whether the session has requested this row by `ask`."""
        return self._asked.get(row.kv_name) == row.goal

    def forget(self, kv_name: str) -> None:
        """Drop the state of an ended sequence."""
        self._asked.pop(kv_name, None)


class TargetLost(RuntimeError):
    """The target cannot recover from a failed step. The process must end, so that gateways move its generations."""


@dataclass(frozen=True, slots=True)
class ModelStep:
    """Result of one step."""

    results: dict[Row, Outcome | InternalError | None]
    """Result of each row that is done; None for a prefill."""
    chunks: Sequence[ScheduledChunk]
    """Chunks that the pass computed; empty if there was no pass."""
    started: float
    """Start time of the pass, by `time.perf_counter`."""
    seconds: float
    """Duration of the pass in seconds."""
    running: int
    """Number of sequences that have KV."""
    preempted: int
    """Number of sequences preempted in this step."""
    queried: int
    """Total tokens of the sequences admitted in this step."""
    found: Mapping[str, int]
    """Tokens found in the prefix cache for each admitted sequence, by KV name."""
    memory: KvMemory

    @property
    def names(self) -> frozenset[str]:
        """KV names of the sequences that the pass computed."""
        return frozenset(chunk.row.kv_name for chunk in self.chunks)


Passed = Callable[[ModelStep, Sequence[Row]], object]
"""Callback for a step that another step follows; receives the step and the rows of the next one."""


class BatchModel(Protocol):
    """A target that runs passes one at a time."""

    drafts_first: bool
    """Whether the pass that computes the end of a prompt can also judge a draft."""

    @property
    def flags(self) -> RunAheadFlags:
        """Flags by which the event loop controls whether passes run ahead."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence of up to `limit` tokens fits an empty target. Any thread may call this."""

    def join(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Pass changes to the next pass of the current run. Called by the event loop.

        Changes that no pass has taken when the run ends stay pending. The next run releases the sequences, and takes
        each row unless it has another row of the same sequence. If a sequence ends while a run with its row is about
        to begin, the run drops that row.

        Args:
            ended: KV names of the sequences that have ended.
            rows: plain rows that may run ahead, of sequences without a row.
        """

    async def watch(self) -> None:
        """Raise TargetLost if the target is lost while no step runs. Never returns."""

    def run(self, ended: Sequence[str], rows: Sequence[Row], passed: Passed) -> ModelStep:
        """Run a step and the steps that run ahead after it. Always called on the same thread.

        Args:
            ended: KV names of the sequences that have ended.
            rows: rows in order of rank, at most one for each sequence.
            passed: called with each step except the last.

        Returns:
            The last step.

        Raises:
            TargetLost: the target cannot run further steps.
        """
