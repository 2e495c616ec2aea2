"""Passes of plain rounds that follow one another without the event loop between them.

Where every row of a pass decodes plainly, its verdicts alone say what the next pass computes. So the next one begins at
once, while the event loop gives out the verdicts. The target is at most one round ahead of any session.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from specdec.errors import InternalError
from verifier_service.batching.batch_plan import Outcome, Row
from verifier_service.batching.model_step import ModelStep, Passed
from verifier_service.batching.told import Told

Result = asyncio.Future[Outcome | None]
"""What becomes of a row; None for a prefill."""


class SteppedModel(ABC):
    """A `BatchModel` that does one step after the other, all on one thread."""

    def __init__(self) -> None:
        self.told = Told()

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
        step = self.step(ended, rows)
        while behind := following(step, rows, self.told):
            passed(step, behind)
            rows, step = behind, self.step((), behind)
        return step


def following(step: ModelStep, rows: Sequence[Row], told: Told) -> Sequence[Row]:
    """The rows of the pass that may begin behind a step over `rows`; none where the event loop comes first."""
    if told.stopped or len(step.results) < len(rows):
        return ()
    may = all(_may_follow(row, result, told) for row, result in step.results.items())
    return rows_behind(step) if may else ()


def rows_behind(step: ModelStep) -> Sequence[Row]:
    """The rows behind the verdicts of a step."""
    outcomes = ((row, result) for row, result in step.results.items() if isinstance(result, Outcome))
    return [row.behind((*row.tokens, *outcome.verdict.tokens)) for row, outcome in outcomes]


def _may_follow(row: Row, result: Outcome | InternalError | None, told: Told) -> bool:
    """Whether a row may follow before the session has its say."""
    if not row.runs_ahead or row.draft.tokens or not isinstance(result, Outcome):
        return False
    if row.unasked and not told.asked(row):
        return False
    tokens = result.verdict.tokens
    return len(row.tokens) + len(tokens) < row.limit and tokens[-1] not in row.call.stop_token_ids


class Unasked:
    """The rows that are under way, or done, before their sessions ask for them; on the event loop."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._rows: dict[str, tuple[Row, Result]] = {}
        """By KV name."""

    def __contains__(self, kv_name: str) -> bool:
        return kv_name in self._rows

    def add(self, row: Row, result: Result) -> None:
        """Note a row that is under way."""
        self._rows[row.kv_name] = row, result

    def take(self, wanted: Row) -> Result | None:
        """The result of the row that is under way in place of one that a session asks for; None where none is."""
        if wanted.kv_name not in self._rows:
            return None
        row, result = self._rows.pop(wanted.kv_name)
        if wanted.runs_ahead and not result.done():
            self._told.ask(row)
        return result

    def drop(self, kv_name: str) -> None:
        """Forget a sequence that has ended."""
        self._told.forget(kv_name)
        if kv_name in self._rows:
            _, result = self._rows.pop(kv_name)
            result.cancel()  # asyncio would complain of an error that nobody asks for
