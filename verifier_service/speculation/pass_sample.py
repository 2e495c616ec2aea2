"""Measurements of target passes."""

from dataclasses import dataclass
from typing import Self

from verifier_service.backends.batch_plan import Outcome
from verifier_service.backends.model_step import ModelStep


@dataclass(frozen=True, slots=True)
class PassSample:
    """Measurements of one pass."""

    rows: int
    """Number of sessions that got a verdict."""
    sessions: int
    """Number of sessions in the pass, or in both groups if there are two."""
    computed: int
    """Tokens that the pass computed."""
    committed: int
    """Tokens in the verdicts of the pass."""
    drafting: int
    """Sessions that had a draft."""
    started: float
    """Start time by `time.perf_counter`."""
    seconds: float
    follows: bool
    """Whether a session of the previous pass takes part or waits for drafts, so that the gap before the pass belongs
    to the batch's rounds. With two groups, either of the two previous passes counts."""
    prompt: int = 0
    """Prompt tokens among those computed."""
    reading: int = 0
    """Sessions whose prompts the pass completes or a later pass continues."""
    left: int = 0
    """Sessions whose prompts a later pass continues."""
    catching_up: int = 0
    """Sessions without a draft because their drafter was still reading their tokens."""
    ahead: bool = False
    """Whether the pass ran ahead: it began before its sessions requested it."""
    groups: int = 1
    """Number of groups of the batch."""
    waited: float = 0.0
    """Longest wait in seconds among the drafts that arrived since the previous pass."""

    @classmethod
    def of(cls, step: ModelStep, sessions: int, *, follows: bool, groups: int, waited: float, left: int) -> Self:
        """Create the sample of a step's pass; `left` sessions wait for a pass over the rest of their prompts."""
        drafts = [chunk.drafts for chunk in step.chunks if chunk.judges]
        prompts = [(chunk, read) for chunk in step.chunks if (read := chunk.count - chunk.judges)]
        outcomes = [outcome for outcome in step.results.values() if isinstance(outcome, Outcome)]
        return cls(
            rows=len(drafts),
            sessions=sessions,
            computed=sum(chunk.count for chunk in step.chunks) + sum(drafts),
            prompt=sum(read for _, read in prompts),
            reading=sum(chunk.complete for chunk, _ in prompts) + left,
            left=left,
            committed=sum(len(outcome.verdict.tokens) for outcome in outcomes),
            drafting=sum(count > 0 for count in drafts),
            catching_up=sum(chunk.row.catching_up for chunk in step.chunks),
            ahead=all(chunk.row.unasked for chunk in step.chunks),
            started=step.started,
            seconds=step.seconds,
            follows=follows,
            groups=groups,
            waited=waited,
        )


class PassHistory:
    """Creates the sample of each pass from the step and the previous passes."""

    def __init__(self) -> None:
        self._before: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """KV names of the last two passes, the latest one last."""

    def add(self, step: ModelStep, groups: int, waited: float, left: int, *, waits: bool) -> PassSample:
        """Return the sample of the next pass.

        Args:
            step: step with the pass.
            groups: as in `PassSample`.
            waited: as in `PassSample`.
            left: as in `PassSample`.
            waits: whether a session was waiting for drafts when the pass began.
        """
        names = step.names
        sessions = len(names) if groups == 1 else len(names | self._before[-1])
        follows = waits or not names.isdisjoint(frozenset[str]().union(*self._before[-groups:]))
        self._before = self._before[1], names
        return PassSample.of(step, sessions, follows=follows, groups=groups, waited=waited, left=left)
