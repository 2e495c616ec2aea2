"""What a check is: one number that is measured of the product, and the bound that sound code keeps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from tests.conformance.table_models import Context

LOOKS: Final = 4
"""How often a bug is looked for while the sessions of a check run."""

Enough = Callable[[float], bool]
"""Whether the number that some of the sessions give is enough, so that the others need not run."""


class Kind(StrEnum):
    """What the measured number is."""

    P_VALUE = "p"
    """The p-value of a G-test; a small one is a failure."""
    ERROR = "error"
    """A largest difference, or a count of errors; a large one is a failure."""


@dataclass(frozen=True)
class Check:
    """One measurement of the product."""

    name: str
    kind: Kind
    bound: float
    """Sound code has at least this p-value, or at most this error."""
    measure: Callable[[], float]
    look: Callable[[Enough], float] | None = None
    """As `measure`, but in parts, each with what was before it, until a number is enough; None if it has no parts."""
    crosses_a_border: bool = False
    """Whether it opens sockets or loads Hugging Face models."""

    def search(self) -> float:
        """The first number out of bounds that a part of the sessions gives, or that of all of them.

        A bug that shows in a quarter of the sessions need not run the others. Sound code is out of the bound of a
        p-value in a look as rarely as at the end, so that to look four times adds no catch that anyone would see.
        """
        return self.look(lambda value: not self.passes(value)) if self.look else self.measure()

    def passes(self, value: float) -> bool:
        """Whether sound code could have this value; NaN never passes."""
        return value >= self.bound if self.kind is Kind.P_VALUE else value <= self.bound

    def __str__(self) -> str:
        return self.name


def exact(name: str, measure: Callable[[], float]) -> Check:
    """A check by enumeration, whose error is at most rounding."""
    return Check(name, Kind.ERROR, 1e-12, measure)


def count(name: str, measure: Callable[[], float], crosses_a_border: bool = False) -> Check:
    """A check that counts errors."""
    return Check(name, Kind.ERROR, 0.0, measure, crosses_a_border=crosses_a_border)


def parts(sessions: int) -> list[range]:
    """The numbers of the sessions that run before each look."""
    ends = [sessions * look // LOOKS for look in range(LOOKS + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


def in_parts(
    sessions: int, sample: Callable[[range], Sequence[Context]], value: Callable[[Sequence[Context]], float]
) -> Callable[[Enough], float]:
    """The `look` of a check whose sessions can run by their numbers."""

    def look(enough: Enough) -> float:
        outputs: list[Context] = []
        for part in parts(sessions):
            outputs += sample(part)
            if enough(found := value(outputs)):
                break
        return found

    return look
