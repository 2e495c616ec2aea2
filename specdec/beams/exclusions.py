"""Check of the options that a beam search excludes."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from specdec.errors import UnsupportedParameter
from specdec.sampling.params import SamplingParams

_NEUTRAL = SamplingParams()
_FREE = ("temperature", "seed", "grammar", "end_token_ids")
"""Sampling parameters that are not compared with the neutral ones; the first two change nothing in a search."""


def check_beside_beams(sampling: SamplingParams, temperature_given: bool, others: Mapping[str, Any]) -> None:
    """Refuse options that change the ranking of beams, or that need more than one output or round.

    Args:
        sampling: sampling parameters of the request.
        temperature_given: whether the caller chose the temperature; 0 and 1 are accepted.
        others: further options by the name of their field; one that is not empty is refused.

    Raises:
        UnsupportedParameter: an option cannot be combined with a search; the error names its field.
    """
    given = {field.name: getattr(sampling, field.name) for field in fields(sampling) if field.name not in _FREE}
    refused = [name for name, value in given.items() if value != getattr(_NEUTRAL, name)]
    if temperature_given and sampling.temperature not in (0.0, 1.0):
        refused.append("temperature")
    refused += [name for name, value in others.items() if value]
    for name in refused:
        raise UnsupportedParameter(f"{name} is not supported beside a beam search", name)
