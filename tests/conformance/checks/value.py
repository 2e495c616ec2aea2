"""What a check is: one number measured of the code as it stands, and the bound that sound code keeps."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What the number is."""

    P_VALUE = "p"
    """Of a G-test: small is bad."""
    ERROR = "error"
    """A largest difference, or a count of what is wrong: large is bad."""


@dataclass(frozen=True)
class Check:
    """One way to look at the product."""

    name: str
    kind: Kind
    bound: float
    """Sound code has at least this p-value, or at most this error."""
    measure: Callable[[], float]
    crosses_a_border: bool = False
    """Whether it opens sockets or loads Hugging Face models."""

    def passes(self, value: float) -> bool:
        """Whether sound code could have measured this; not a number is an error too."""
        return value >= self.bound if self.kind is Kind.P_VALUE else value <= self.bound

    def __str__(self) -> str:
        return self.name


def exact(name: str, measure: Callable[[], float]) -> Check:
    """An enumeration: right to rounding, or wrong."""
    return Check(name, Kind.ERROR, 1e-12, measure)


def count(name: str, measure: Callable[[], float], crosses_a_border: bool = False) -> Check:
    """A count of what is wrong."""
    return Check(name, Kind.ERROR, 0.0, measure, crosses_a_border)
