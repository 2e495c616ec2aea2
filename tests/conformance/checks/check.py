"""Definition of a check: one number measured on the product, and the bound that sound code keeps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from tests.conformance.table_models import Context

LOOKS: Final = 4
"""Number of looks for a bug while the sessions of a check run."""

Enough = Callable[[float], bool]
"""Whether the number from the sessions so far is conclusive, so that the remaining sessions need not run."""


class Kind(StrEnum):
    """Kind of the measured number."""

    P_VALUE = "p"
    """The p-value of a G-test. A small value is a failure."""
    ERROR = "error"
    """A largest difference or a count of errors. A large value is a failure."""


@dataclass(frozen=True)
class Check:
    """One measurement of the product."""

    name: str
    kind: Kind
    bound: float
    """Sound code has at least this p-value, or at most this error."""
    measure: Callable[[], float]
    look: Callable[[Enough], float] | None = None
    """Like `measure`, but cumulative by parts of the sessions, until a number is enough. None if there are no parts."""
    crosses_a_border: bool = False
    """Whether it opens sockets or loads Hugging Face models."""

    def search(self) -> float:
        """Return the number of the first growing part that is out of bounds, or the number of all sessions.

        A bug that shows in a quarter of the sessions need not run the others. For sound code, a p-value at a look is
        out of bounds as rarely as at the end, so four looks add no noticeable rate of false catches.
        """
        return self.look(lambda value: not self.passes(value)) if self.look else self.measure()

    def passes(self, value: float) -> bool:
        """Whether sound code could have this value. NaN never passes."""
        return value >= self.bound if self.kind is Kind.P_VALUE else value <= self.bound

    def __str__(self) -> str:
        return self.name


def exact(name: str, measure: Callable[[], float]) -> Check:
    """Return a check by enumeration. Its error is at most rounding."""
    return Check(name, Kind.ERROR, 1e-12, measure)


def count(name: str, measure: Callable[[], float], crosses_a_border: bool = False) -> Check:
    """Return a check that counts errors."""
    return Check(name, Kind.ERROR, 0.0, measure, crosses_a_border=crosses_a_border)


def parts(sessions: int) -> list[range]:
    """Return the ranges of session numbers that run before each look."""
    ends = [sessions * look // LOOKS for look in range(LOOKS + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


def in_parts(
    sessions: int, sample: Callable[[range], Sequence[Context]], value: Callable[[Sequence[Context]], float]
) -> Callable[[Enough], float]:
    """Return the `look` of a check whose sessions can run by number."""

    def look(enough: Enough) -> float:
        outputs: list[Context] = []
        for part in parts(sessions):
            outputs += sample(part)
            if enough(found := value(outputs)):
                break
        return found

    return look
