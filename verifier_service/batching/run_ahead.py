"""Passes of plain rounds that follow one another on the model's thread, without the event loop between them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from specdec.errors import InternalError
from verifier_service.batching.batch_plan import Outcome, Row
from verifier_service.batching.model_step import BatchModel, ModelStep

Result = asyncio.Future[Outcome | None]
"""What becomes of a row; None for a prefill."""


class RunAhead:
    """Runs a pass, and behind it those that begin before their sessions ask for them.

    Where every row of a pass decodes plainly, its verdicts alone say what the next pass computes. So the next one
    begins at once, while the event loop gives out the verdicts. The model is at most one round ahead of any session.
    """

    def __init__(
        self, model: BatchModel, stopped: Callable[[], bool], passed: Callable[[ModelStep, Sequence[Row]], None]
    ) -> None:
        """Make one.

        Args:
            model: owned by the thread that calls `run`; the event loop calls all other methods.
            stopped: whether something has come that the next pass must not begin without; any thread may ask.
            passed: takes, on the event loop, each step that another one follows, and the rows of that one.
        """
        self._model = model
        self._stopped = stopped
        self._passed = passed
        self._unasked: dict[str, tuple[Row, Result]] = {}
        """Rows that are under way or done, and that their sessions have not asked for, by KV name."""
        self._asked: set[Row] = set()
        """Rows under way that their sessions have asked for and that another may follow."""

    def run(self, loop: asyncio.AbstractEventLoop, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        """Do a step as `BatchModel`, and all that follow; returns the last."""
        step = self._model.step(ended, rows)
        while following := self._following(step, rows):
            loop.call_soon_threadsafe(self._passed, step, following)
            rows, step = following, self._model.step((), following)
        return step

    def begun(self, row: Row, result: Result) -> None:
        """Note a row that is under way, which its session will ask for."""
        self._unasked[row.kv_name] = row, result

    def has(self, kv_name: str) -> bool:
        """Whether a sequence has a row that is under way, or done, and that its session has not asked for."""
        return kv_name in self._unasked

    def asked(self, wanted: Row) -> Result | None:
        """The result of the row that is under way in place of one that a session asks for; None where none is."""
        if wanted.kv_name not in self._unasked:
            return None
        row, result = self._unasked.pop(wanted.kv_name)
        if wanted.runs_ahead and not result.done():
            self._asked.add(row)
        return result

    def done(self, row: Row) -> None:
        """Forget a row that has its result."""
        self._asked.discard(row)

    def left(self, kv_name: str) -> None:
        """Forget a sequence that has ended."""
        if kv_name in self._unasked:
            _, result = self._unasked.pop(kv_name)
            result.cancel()  # asyncio would complain of an error that nobody asks for

    def _following(self, step: ModelStep, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows of the pass that may begin now; none where the event loop comes first."""
        if self._stopped() or len(step.results) < len(rows):
            return ()
        following = [row for each in step.results.items() if (row := self._next(*each))]
        return following if len(following) == len(rows) else ()

    def _next(self, row: Row, result: Outcome | InternalError | None) -> Row | None:
        """The row behind a verdict; None where none may follow before the session has its say."""
        if not row.runs_ahead or not isinstance(result, Outcome) or (row.unasked and row not in self._asked):
            return None
        tokens = tuple(row.tokens) + result.verdict.tokens
        if len(tokens) >= row.limit or tokens[-1] in row.call.stop_token_ids:
            return None
        return replace(row, tokens=tokens, goal=len(tokens), unasked=True)
