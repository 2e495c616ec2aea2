"""Finds stop strings in text that arrives in parts."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string found in a text."""

    stop: str
    start: int
    """Index in the text where the stop string begins."""


def find_stop(text: str, stops: Sequence[str]) -> Match | None:
    """The stop string that ends first, and of several that end there the one that begins first; None without any."""
    found = ((start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0)
    first = min(found, default=None)
    return Match(first[2], first[1]) if first else None


def held_length(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that more text could complete to a stop string."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
