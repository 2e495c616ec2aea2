"""What a check is: one number that is measured of the product, and the bound that sound code keeps."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


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
    crosses_a_border: bool = False
    """Whether it opens sockets or loads Hugging Face models."""

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
    return Check(name, Kind.ERROR, 0.0, measure, crosses_a_border)
