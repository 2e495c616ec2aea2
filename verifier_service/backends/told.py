"""Flags from the event loop to the thread that runs the target's passes."""

from verifier_service.backends.batch_plan import Row


class Told:
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
