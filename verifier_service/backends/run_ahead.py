"""Passes of plain rounds that follow one another without the event loop between them.

Where every row of a pass decodes plainly, its verdicts alone say what the next pass computes. So the next one begins at
once, while the event loop gives out the verdicts. Sequences that decode plainly come and end between two passes. The
target is at most one round ahead of any session.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from specdec.errors import InternalError
from verifier_service.backends.batch_plan import Outcome, Row
from verifier_service.backends.changes import Changes, PendingChanges
from verifier_service.backends.model_step import ModelStep, Passed
from verifier_service.backends.told import Told

_MOST_JOINED = 4096
"""Tokens of a row that is handed over by the event loop, which may wait for a pass where it is long."""


class SteppedModel(ABC):
    """A `BatchModel` that does one step after the other, all on one thread."""

    def __init__(self) -> None:
        self.told = Told()
        self.pending = PendingChanges()

    def join(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Have the next pass take changes; as `BatchModel`."""
        self.pending.add(ended, rows)

    async def watch(self) -> None:
        """Wait for ever: it is lost with its process, or in a step."""
        await asyncio.get_running_loop().create_future()

    @abstractmethod
    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        """Release sequences, admit those that wait, and run one pass.

        Where rows are done without a pass there is none: their sequences have rows for the next, which is at once. So
        a sequence that comes in does not wait for a pass of the others before its first.

        Args:
            ended: KV names of the sequences that have ended.
            rows: by rank, at most one for each sequence.

        Raises:
            TargetLost: no later step can succeed.
        """

    def run(self, ended: Sequence[str], rows: Sequence[Row], passed: Passed) -> ModelStep:
        """Do a step and all that follow; as `BatchModel`."""
        over = self.pending.begin(rows)
        rows = [row for row in rows if row.kv_name not in over]
        step = self.step([*over, *ended], rows)
        while _may_go_on(step, self.told):
            changes = self.pending.take()
            behind = following(step, rows, changes)
            if not behind and not changes.ended:
                break
            passed(step, behind)
            rows, step = behind, self.step(changes.ended, behind)
        return step


def joins(row: Row) -> bool:
    """Whether a row that comes while passes follow one another needs nothing of the event loop."""
    return row.runs_ahead and not row.draft.tokens and len(row.tokens) <= _MOST_JOINED


def following(step: ModelStep, rows: Sequence[Row], changes: Changes) -> Sequence[Row]:
    """The rows of the next step, by rank: those behind the ones that a step has done, the others of it, and new ones.

    Args:
        rows: those that the step was given.
    """
    behind = [each for row in rows if (each := _behind(row, step) if row in step.results else row)]
    ended = set(changes.ended)
    return sorted((row for row in [*behind, *changes.rows] if row.kv_name not in ended), key=lambda row: row.rank)


def _may_go_on(step: ModelStep, told: Told) -> bool:
    """Whether another step may follow before the event loop has its say; none behind one that has done no row."""
    if told.stopped or not step.results:
        return False
    return all(_may_follow(row, result, told) for row, result in step.results.items())


def _may_follow(row: Row, result: Outcome | InternalError | None, told: Told) -> bool:
    """Whether a row that is done may be followed before its session has its say."""
    if not row.runs_ahead or row.draft.tokens or isinstance(result, InternalError):
        return False
    return row.goal == 0 if result is None else not row.unasked or told.asked(row)


def _behind(row: Row, step: ModelStep) -> Row | None:
    """The row behind one that is done; None where its sequence ends."""
    outcome = step.results[row]
    if not isinstance(outcome, Outcome):
        return row.behind(row.tokens)
    tokens = outcome.verdict.tokens
    if len(row.tokens) + len(tokens) >= row.limit or tokens[-1] in row.call.stop_token_ids:
        return None
    return row.behind((*row.tokens, *tokens))
