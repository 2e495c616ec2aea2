"""Interface between the scheduling loop and a target: steps over waiting rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec.engine.kv.pool import KvMemory
from specdec.errors import InternalError
from verifier_service.backends.batch_plan import Outcome, Row, ScheduledChunk
from verifier_service.backends.told import Told


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
    def told(self) -> Told:
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
