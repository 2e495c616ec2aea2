"""Fair choice of the decoding rows of each pass: callers take turns, and so do the sequences of each."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter

from specdec.planning.line import Line
from verifier_service.backends.batch_plan import Row, ScheduledChunk

_RATE = 0.9
"""Part of the rows per second of a pass over all rows that a shorter pass must reach."""
_MOST_TURNS = 8
"""Most passes in which all rows take part once, if the rows of a pass are limited for a caller with few."""
_FEW = 0.25
"""Greatest part of the rows that one caller with few rows has."""
_SPREAD = 0.25
"""Distance of the assumed points from the mean number of rows, as a part of it; see `Line.fit`."""
_PRIOR_SHARE = 0.02
"""Assumed increase of a pass's duration for twice the rows, until passes of several sizes are measured."""


class Rotation:
    """Chooses the decoding rows of each pass, if a pass takes only some of them.

    A pass takes all rows unless they are more than its limit, or a caller has few of them and shorter passes compute
    nearly as many rows per second. The rows left out take part in the next passes. So a caller with few sequences gets
    its tokens in shorter passes, and one with many loses at most a tenth of its tokens per second.
    """

    def __init__(self, most: int | None) -> None:
        """Allow at most `most` decoding rows in a pass; None for no limit."""
        self._most = math.inf if most is None else most
        self._durations = Line()
        """Rows and seconds of the passes that computed one token for each row."""
        self._passes = 0
        self._taken: dict[str, float] = {}
        """Decayed mean of the pass numbers that each sequence took part in, by KV name. The latest one weighs half.

        With the latest number alone, sequences of the same pass would tie, and the same ones would always be left
        out."""

    def chosen(self, waiting: Sequence[tuple[Row, int]]) -> list[tuple[Row, int]]:
        """Return the rows of the next pass: all prompts, and the decoding rows whose turn it is.

        Args:
            waiting: rows and their KV lengths, as for `plan`.
        """
        decoding = [row for row, start in waiting if row.goal - start == 1]
        most = self._limit(decoding)
        if len(decoding) <= most:
            return list(waiting)
        decoding.sort(key=lambda row: self.place(row.kv_name))
        by_user = _in_turn(decoding, _caller)
        late = set(_in_turn(by_user, lambda row: row.call.client)[int(most) :])
        return [each for each in waiting if each[0] not in late]

    def place(self, kv_name: str) -> float:
        """Return the sort key of a decoding sequence, lowest first."""
        return self._taken.get(kv_name, 0.0)

    def passed(self, chunks: Sequence[ScheduledChunk], seconds: float) -> None:
        """Record a pass and its duration."""
        self.took_part(chunk.row.kv_name for chunk in chunks)
        if chunks and all(chunk.judges and chunk.count == 1 and not chunk.drafts for chunk in chunks):
            self._durations.observe(len(chunks), seconds)

    def took_part(self, kv_names: Iterable[str]) -> None:
        """Record the sequences of a pass."""
        self._passes += 1
        for name in kv_names:
            self._taken[name] = (self._taken.get(name, self._passes) + self._passes) / 2

    def forget(self, kv_name: str) -> None:
        """Drop an ended sequence."""
        self._taken.pop(kv_name, None)

    def _limit(self, decoding: Sequence[Row]) -> float:
        """Return the most decoding rows of the next pass."""
        callers = Counter(map(_caller, decoding))
        if len(callers) < 2 or min(callers.values()) > _FEW * len(decoding) or not self._durations.known:
            return self._most
        return min(self._most, max(self._enough(len(decoding)), math.ceil(len(decoding) / _MOST_TURNS)))

    def _enough(self, rows: int) -> int:
        """Return the least number of rows of which a pass computes _RATE of the rows per second of one over `rows`.

        With base b and slope s of a pass's duration, that is m with m / (b + s · m) = _RATE · rows / (b + s · rows).
        """
        mean, seconds = self._durations.mean
        base, slope = self._durations.fit(_PRIOR_SHARE * seconds / mean, _SPREAD * mean)
        return math.ceil(_RATE * rows * base / (base + (1.0 - _RATE) * slope * rows))


def _caller(row: Row) -> tuple[str, str]:
    return row.call.client, row.call.user


def _in_turn(rows: Sequence[Row], holder: Callable[[Row], Hashable]) -> list[Row]:
    """Return the rows in an order in which holders take turns; the rows of each holder keep theirs."""
    seen: Counter[Hashable] = Counter()
    numbered: list[tuple[int, Row]] = []
    for row in rows:
        numbered.append((seen[holder(row)], row))
        seen[holder(row)] += 1
    return [row for _, row in sorted(numbered, key=itemgetter(0))]
