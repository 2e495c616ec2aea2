"""Bounds the share of grammars in a pass: rows with expensive masks take turns, and the others never wait for them."""

from collections.abc import Sequence

from verifier_service.backends.batch_plan import Row

_CHEAP = 0.002
"""Seconds of a row's masks that nobody counts."""
_PASS_SECONDS = 0.05
"""Seconds of a pass that the expensive masks of all its rows may take together; one row may take more."""


class MaskBudget:
    """Keeps rows out of a pass, by what their masks took last; such a row waits for a later one."""

    def __init__(self) -> None:
        self._passes = 0
        self._served: dict[str, int] = {}
        """The last pass of each sequence whose masks are expensive, by KV name."""

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of the next pass, in their order: of those that are expensive, the ones that waited longest."""
        expensive = [row for row in rows if row.grammar is not None and row.grammar.seconds > _CHEAP]
        if not expensive:
            return list(rows)
        self._passes += 1
        expensive.sort(key=lambda row: self._served.get(row.kv_name, 0))
        late, left = set[Row](), _PASS_SECONDS
        for row in expensive:
            cost = row.grammar.seconds if row.grammar is not None else 0.0
            if left < cost and left < _PASS_SECONDS:
                late.add(row)
                continue
            left -= cost
            self._served[row.kv_name] = self._passes
        return [row for row in rows if row not in late]

    def forget(self, kv_name: str) -> None:
        """Note that a sequence has ended."""
        self._served.pop(kv_name, None)
