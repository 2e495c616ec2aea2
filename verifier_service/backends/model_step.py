"""What the scheduler needs of a target, whatever engine computes it: steps over the rows that wait."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec.engine.kv.pool import KvMemory
from specdec.errors import InternalError
from verifier_service.backends.batch_plan import Outcome, Row, ScheduledChunk
from verifier_service.backends.told import Told


class TargetLost(RuntimeError):
    """The target cannot go on after a failed step: the process must end, so that its generations are moved."""


@dataclass(frozen=True, slots=True)
class ModelStep:
    """What one step did."""

    results: dict[Row, Outcome | InternalError | None]
    """What became of each row that is done; None for a prefill."""
    chunks: Sequence[ScheduledChunk]
    """What the pass computed; empty when there was no pass."""
    started: float
    """When the pass began, by `time.perf_counter`."""
    seconds: float
    """Duration of the pass."""
    running: int
    """Sequences that have KV."""
    preempted: int
    """Sequences that lost their KV in this step."""
    queried: int
    """Tokens of the sequences that were admitted."""
    found: Mapping[str, int]
    """How many tokens of each sequence that was admitted had KV already, by its KV name."""
    memory: KvMemory

    @property
    def names(self) -> frozenset[str]:
        """KV names of the sequences that the pass computed."""
        return frozenset(chunk.row.kv_name for chunk in self.chunks)


Passed = Callable[[ModelStep, Sequence[Row]], object]
"""Takes a step behind which another one begins, and the rows of that one."""


class BatchModel(Protocol):
    """A target that runs one pass after the other."""

    drafts_first: bool
    """Whether the pass that reads the end of a prompt judges a draft as well."""

    @property
    def told(self) -> Told:
        """What the event loop tells it."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence that may reach `limit` tokens fits into an empty target; any thread may ask."""

    def join(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Have the next pass release sequences and take rows, where one follows; the event loop asks.

        What no pass has taken when a run ends is pending: the next run releases the sequences, and takes the rows
        unless it has others of the same sequences. A sequence may end while a run with a row of it is about to begin:
        the run leaves that row out.

        Args:
            ended: KV names of the sequences that have ended.
            rows: plain ones that may be followed, of sequences without a row.
        """

    async def watch(self) -> None:
        """Raise TargetLost when the target is lost while nothing runs; never returns."""

    def run(self, ended: Sequence[str], rows: Sequence[Row], passed: Passed) -> ModelStep:
        """Do a step, and those that follow before anybody asks for them; always on the same thread.

        Args:
            ended: KV names of the sequences that have ended.
            rows: by rank, at most one for each sequence.
            passed: takes each step but the last.

        Returns:
            The last step.

        Raises:
            TargetLost: no later step can succeed.
        """
