"""What the event loop tells whoever runs the passes of the target, while these run."""

from verifier_service.backends.batch_plan import Row


class Told:
    """Whether a pass may begin before the event loop has its say, and before the session of a row asks for it.

    The event loop writes, the thread that runs the passes reads.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._asked: dict[str, int] = {}

    def stop(self) -> None:
        """Something has come that the next pass must not begin without."""
        self._stopped = True

    def go(self) -> None:
        """All that has come takes part in the next pass."""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called behind `go`."""
        return self._stopped

    def ask(self, row: Row) -> None:
        """The session of a row that is under way has asked for it, and another row may follow."""
        self._asked[row.kv_name] = row.goal

    def asked(self, row: Row) -> bool:
        """Whether `ask` was called with this row."""
        return self._asked.get(row.kv_name) == row.goal

    def forget(self, kv_name: str) -> None:
        """The sequence has ended."""
        self._asked.pop(kv_name, None)
