"""The rows that wait for the target, each with the result that its session waits for."""

from collections.abc import Mapping

from specdec.errors import InternalError
from verifier_service.batching.batch_plan import Outcome, Row
from verifier_service.batching.run_ahead import Result


class WaitingRows(dict[Row, Result]):
    """Belongs to the event loop."""

    @property
    def prompts(self) -> int:
        """Of how many prompts a pass could compute a part now; what waits for room does not count."""
        return sum(row.goal > 0 and len(row.tokens) == len(row.call.tokens) for row in self)

    def drop_cancelled(self) -> None:
        """Forget the rows that no session waits for any more."""
        for row in [row for row, result in self.items() if result.cancelled()]:
            del self[row]

    def deliver(self, results: Mapping[Row, Outcome | InternalError | None]) -> None:
        """Give the sessions what they wait for; rows that were dropped are left out."""
        for row, outcome in results.items():
            if (result := self.pop(row, None)) is None or result.cancelled():
                continue
            if isinstance(outcome, InternalError):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)
