"""One pass of the target, as it was measured."""

from dataclasses import dataclass
from typing import Self

from verifier_service.backends.batch_plan import Outcome
from verifier_service.backends.model_step import ModelStep


@dataclass(frozen=True, slots=True)
class PassSample:
    """One pass, as it was measured."""

    rows: int
    """Sessions that got a verdict."""
    sessions: int
    """The same; where groups take turns, those of both."""
    computed: int
    """Tokens that it computed."""
    committed: int
    """Tokens that its verdicts hold."""
    drafting: int
    """Sessions that had a draft."""
    started: float
    """By `time.perf_counter`."""
    seconds: float
    follows: bool
    """Whether a session of the pass before takes part, or waits for drafts: then the time between belongs to the rounds
    of the batch. Where groups take turns, it is one of the two passes before."""
    prompt: int = 0
    """Tokens of prompts among those computed."""
    reading: int = 0
    """Sessions whose prompts are read, in the pass or behind it."""
    left: int = 0
    """Those of them whose prompts the next pass goes on with."""
    catching_up: int = 0
    """Sessions that had no draft because their drafter still read their tokens."""
    ahead: bool = False
    """Whether it began before its sessions asked for it."""
    groups: int = 1
    """Groups that the batch was in."""
    waited: float = 0.0
    """Longest time that one of the drafts which came since the pass before took."""

    @classmethod
    def of(cls, step: ModelStep, sessions: int, *, follows: bool, groups: int, waited: float, left: int) -> Self:
        """What a step's pass showed; `left` sessions wait for a pass over the rest of their prompts."""
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
    """Makes a sample of each pass, by the passes before it."""

    def __init__(self) -> None:
        self._before: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """KV names of the last two passes, the last one last."""

    def add(self, step: ModelStep, groups: int, waited: float, left: int, *, waits: bool) -> PassSample:
        """The sample of the next pass.

        Args:
            groups: as of `PassSample`, and so are `waited` and `left`.
            waits: whether a session waited for drafts when the pass began.
        """
        names = step.names
        sessions = len(names) if groups == 1 else len(names | self._before[-1])
        follows = waits or not names.isdisjoint(frozenset[str]().union(*self._before[-groups:]))
        self._before = self._before[1], names
        return PassSample.of(step, sessions, follows=follows, groups=groups, waited=waited, left=left)
