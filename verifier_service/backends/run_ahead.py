"""Plain passes that follow one another without the event loop.

If every row of a pass decodes plainly, its verdicts alone determine the next pass. So the next pass begins at once,
while the event loop delivers the verdicts. Sequences that decode plainly can join and leave between two passes. The
target is at most one round ahead of any session.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from specdec.errors import InternalError
from verifier_service.backends.batch_plan import Outcome, Row
from verifier_service.backends.model_step import Changes, ModelStep, Passed, PendingChanges, RunAheadFlags

_MOST_JOINED = 4096
"""Longest row, in tokens, that may join between two passes. Handing over a longer row may block the event loop."""


class SteppedModel(ABC):
    """A `BatchModel` that runs its steps on one thread."""

    def __init__(self) -> None:
        self.flags = RunAheadFlags()
        self.pending = PendingChanges()

    def join(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Pass changes to the next pass; see `BatchModel`."""
        self.pending.add(ended, rows)

    async def watch(self) -> None:
        """Wait forever. The target can be lost only with its process or in a step."""
        await asyncio.get_running_loop().create_future()

    @abstractmethod
    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        """Release sequences, admit waiting ones, and run one pass.

        If some rows are done without a pass, the step runs none: the next step follows at once and includes the next
        rows of their sequences. So an admitted sequence joins the next pass.

        Args:
            ended: KV names of the sequences that have ended.
            rows: rows in order of rank, at most one for each sequence.

        Raises:
            TargetLost: the target cannot run further steps.
        """

    def run(self, ended: Sequence[str], rows: Sequence[Row], passed: Passed) -> ModelStep:
        """Run a step and the steps that run ahead after it; see `BatchModel`."""
        over = self.pending.begin(rows)
        rows = [row for row in rows if row.kv_name not in over]
        step = self.step([*over, *ended], rows)
        while _may_go_on(step, self.flags):
            changes = self.pending.take()
            successors = following(step, rows, changes)
            if not successors and not changes.ended:
                break
            passed(step, successors)
            rows, step = successors, self.step(changes.ended, successors)
        return step


def joins(row: Row) -> bool:
    """Whether a row can join between two passes that run ahead."""
    return row.runs_ahead and not row.draft.tokens and len(row.tokens) <= _MOST_JOINED


def following(step: ModelStep, rows: Sequence[Row], changes: Changes) -> Sequence[Row]:
    """Return the rows of the next step in order of rank.

    They are the successors of the rows that the step has done, its other rows, and the rows that join.

    Args:
        step: the step just done.
        rows: rows given to that step.
        changes: sequences that have ended, and rows that join.
    """
    successors = [each for row in rows if (each := _successor(row, step) if row in step.results else row)]
    ended = set(changes.ended)
    return sorted((row for row in [*successors, *changes.rows] if row.kv_name not in ended), key=lambda row: row.rank)


def _may_go_on(step: ModelStep, flags: RunAheadFlags) -> bool:
    """Whether another step may follow without the event loop. Never after a step that has done no row."""
    if flags.stopped or not step.results:
        return False
    return all(_may_follow(row, result, flags) for row, result in step.results.items())


def _may_follow(row: Row, result: Outcome | InternalError | None, flags: RunAheadFlags) -> bool:
    """Whether the next row of a sequence may start before the session requests it."""
    if not row.runs_ahead or row.draft.tokens or isinstance(result, InternalError):
        return False
    return row.goal == 0 if result is None else not row.prefetched or flags.asked(row)


def _successor(row: Row, step: ModelStep) -> Row | None:
    """Return the row that follows one that is done, or None if its sequence ends."""
    outcome = step.results[row]
    if not isinstance(outcome, Outcome):
        return row.successor(row.tokens)
    tokens = outcome.verdict.tokens
    if len(row.tokens) + len(tokens) >= row.limit or tokens[-1] in row.call.stop_token_ids:
        return None
    return row.successor((*row.tokens, *tokens))
