"""Policies that choose the draft length of a request, and their parser."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from specdec.errors import FieldInvalid, GammaTooLarge

_FIELD = "speculation.gamma"
_NUMBERS = {"fixed": ("value",), "auto": ("max",), "optimal": ("max",), "egag": ("min", "max", "ema")}
"""The fields of each policy, in addition to min_confidence, which all have."""
POLICIES = tuple(_NUMBERS)
"""The names of the policies, as callers write them."""
_WHOLE = ("value", "min", "max")


def _check(holds: bool, field: str, said: str) -> None:
    if not holds:
        raise FieldInvalid(f"{_FIELD}.{field} {said}", f"{_FIELD}.{field}")


class PolicyKind(StrEnum):
    """Component that chooses a draft length that is not fixed."""

    AUTO = "auto"
    """The verifier, for its batch as a whole."""
    OPTIMAL = "optimal"
    """The verifier, for this session alone: the length of the greatest predicted speed-up."""
    EGAG = "egag"
    """The drafter, by the entropy of its distributions: the higher the entropy, the shorter the draft."""


@dataclass(frozen=True, slots=True)
class GammaPolicy:
    """Policy for the draft length: who chooses it, its limits, and when a draft ends early.

    Raises:
        FieldInvalid: a field is out of range.
    """

    policy: PolicyKind = PolicyKind.AUTO
    min: int = 1
    """Fewest drafts, for egag."""
    max: int | None = None
    """Most drafts; None is the verifier's limit."""
    ema: float = 0.5
    """Weight of earlier entropies in their average, for egag; 0 takes the latest entropy alone."""
    min_confidence: float = 0.0
    """A draft ends after a token whose probability is below this; 0 disables the limit."""

    @property
    def reads_certainty(self) -> bool:
        """Whether the drafter must compute the certainty of its model."""
        return self.policy is PolicyKind.EGAG or self.min_confidence > 0.0

    def most(self, limit: int) -> int:
        """Most drafts if the verifier allows `limit`."""
        return limit if self.max is None else min(self.max, limit)

    def check_limit(self, limit: int) -> None:
        """Raise GammaTooLarge if the policy asks for more than `limit` drafts."""
        for name, value in (("min", self.min), ("max", self.max or 0)):
            if value > limit:
                raise GammaTooLarge(f"{_FIELD}.{name} must be at most {limit}, got {value}", f"{_FIELD}.{name}")

    def __post_init__(self) -> None:
        _check(self.min >= 1, "min", f"must be at least 1, got {self.min}")
        _check(self.max is None or self.max >= self.min, "max", f"must be at least {self.min}, got {self.max}")
        _check(0.0 <= self.ema < 1.0, "ema", f"must be in [0, 1), got {self.ema}")
        _check(0.0 <= self.min_confidence <= 1.0, "min_confidence", f"must be in [0, 1], got {self.min_confidence}")


AUTO = GammaPolicy()
"""Default policy of a request."""


def parse_gamma(value: Any) -> tuple[int | None, GammaPolicy]:
    """Parse a caller's draft length. Return the fixed length, None if it is not fixed, and the policy.

    Raises:
        FieldInvalid: `value` is neither an integer, nor the name of a policy, nor an object with a policy and its
            fields.
    """
    if value is None or value == "auto":
        return None, AUTO
    if type(value) is int:
        return value, AUTO
    if isinstance(value, str) and value in set(PolicyKind):
        return None, GammaPolicy(PolicyKind(value))
    if not isinstance(value, Mapping):
        names = ", ".join(PolicyKind)
        raise FieldInvalid(f"{_FIELD} must be an integer, one of {names}, or an object with a policy", _FIELD)
    name = value.get("policy")
    if not isinstance(name, str) or name not in _NUMBERS:
        raise FieldInvalid(f"{_FIELD}.policy must be one of {', '.join(_NUMBERS)}, got {name!r}", f"{_FIELD}.policy")
    fields = {field: _number(field, each, name) for field, each in value.items() if field != "policy"}
    if name != "fixed":
        return None, GammaPolicy(PolicyKind(name), **fields)
    _check("value" in fields, "value", "is required with policy fixed")
    return fields.pop("value"), GammaPolicy(**fields)


def _number(field: str, value: Any, policy: str) -> Any:
    allowed = (*_NUMBERS[policy], "min_confidence")
    _check(field in allowed, field, f"is no field of policy {policy}, which has {', '.join(allowed)}")
    whole = field in _WHOLE
    kind = "an integer" if whole else "a number"
    _check(type(value) in ((int,) if whole else (int, float)), field, f"must be {kind}, got {value!r}")
    return value
