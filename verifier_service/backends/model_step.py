"""Interface between the scheduling loop and a target: steps over waiting rows, and whose turn they are."""

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol, TypeVar

from specdec.engine.kv.pool import KvMemory
from specdec.errors import InternalError
from specdec.planning.line import Line
from verifier_service.backends.batch_plan import Outcome, Row, ScheduledChunk

_RATE = 0.9
"""Part of the rows per second of a pass over all rows that a shorter pass must reach."""
_MOST_TURNS = 8
"""Most passes in which all rows take part once, if the rows of a pass are limited for a caller with few."""
_FEW = 0.25
"""Greatest part of the rows that one caller with few rows has."""
_SPREAD = 0.25
"""Distance of the assumed points from the mean number of rows, as a part of it; see `Line.fit`."""
_PRIOR_SHARE = 0.02
"""Assumed increase of a pass's duration for twice the rows, until passes of several sizes are measured."""

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


class Rotation:
    """Chooses the decoding rows of each pass, if a pass takes only some of them.

    A pass takes all rows unless they are more than its limit, or a caller has few of them and shorter passes compute
    nearly as many rows per second. The rows left out take part in the next passes. So a caller with few sequences
    waits for shorter passes.
    """

    def __init__(self, most: int | None) -> None:
        """Allow at most `most` decoding rows in a pass; None for no limit."""
        self._most = math.inf if most is None else most
        self._durations = Line()
        """Rows and seconds of the passes that computed one token for each row."""
        self._passes = 0
        self._taken: dict[str, float] = {}
        """Decayed mean of the pass numbers that each sequence took part in, by KV name. The latest one weighs half.

        With the latest number alone, sequences of the same pass would tie, and the same ones would always be left
        out."""

    def chosen(self, waiting: Sequence[tuple[Row, int]]) -> list[tuple[Row, int]]:
        """Return the rows of the next pass: all prompts, and the decoding rows whose turn it is.

        Args:
            waiting: rows and their KV lengths, as for `plan`.
        """
        decoding = [row for row, start in waiting if row.goal - start == 1]
        most = self._limit(decoding)
        if len(decoding) <= most:
            return list(waiting)
        decoding.sort(key=lambda row: self.place(row.kv_name))
        by_user = _in_turn(decoding, _caller)
        late = set(_in_turn(by_user, lambda row: row.call.client)[int(most) :])
        return [each for each in waiting if each[0] not in late]

    def place(self, kv_name: str) -> float:
        """Return the sort key of a decoding sequence, lowest first."""
        return self._taken.get(kv_name, 0.0)

    def passed(self, chunks: Sequence[ScheduledChunk], seconds: float) -> None:
        """Record a pass and its duration."""
        self.took_part(chunk.row.kv_name for chunk in chunks)
        if chunks and all(chunk.judges and chunk.count == 1 and not chunk.drafts for chunk in chunks):
            self._durations.observe(len(chunks), seconds)

    def took_part(self, kv_names: Iterable[str]) -> None:
        """Record the sequences of a pass."""
        self._passes += 1
        for name in kv_names:
            self._taken[name] = (self._taken.get(name, self._passes) + self._passes) / 2

    def forget(self, kv_name: str) -> None:
        """Drop an ended sequence."""
        self._taken.pop(kv_name, None)

    def _limit(self, decoding: Sequence[Row]) -> float:
        """Return the most decoding rows of the next pass."""
        callers = Counter(map(_caller, decoding))
        if len(callers) < 2 or min(callers.values()) > _FEW * len(decoding) or not self._durations.known:
            return self._most
        return min(self._most, max(self._enough(len(decoding)), math.ceil(len(decoding) / _MOST_TURNS)))

    def _enough(self, rows: int) -> int:
        """Return the least number of rows of which a pass computes _RATE of the rows per second of one over `rows`.

        With base b and slope s of a pass's duration, that is m with m / (b + s · m) = _RATE · rows / (b + s · rows).
        """
        mean, seconds = self._durations.mean
        base, slope = self._durations.fit(_PRIOR_SHARE * seconds / mean, _SPREAD * mean)
        return math.ceil(_RATE * rows * base / (base + (1.0 - _RATE) * slope * rows))


def _caller(row: Row) -> tuple[str, str]:
    return row.call.client, row.call.user


def _in_turn(rows: Sequence[Row], holder: Callable[[Row], Hashable]) -> list[Row]:
    """Return the rows in an order in which holders take turns; the rows of each holder keep theirs."""
    seen: Counter[Hashable] = Counter()
    numbered: list[tuple[int, Row]] = []
    for row in rows:
        numbered.append((seen[holder(row)], row))
        seen[holder(row)] += 1
    return [row for _, row in sorted(numbered, key=itemgetter(0))]
