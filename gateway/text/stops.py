"""Finds stop strings in text that comes in pieces."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string was completed."""

    stop: str
    start: int
    """Where it begins in the text that was searched."""


def find_stop(text: str, stops: Sequence[str]) -> Match | None:
    """The stop that is complete first; of those that end together, the one that began first."""
    found = ((start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0)
    first = min(found, default=None)
    return Match(first[2], first[1]) if first else None


def held_length(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that more text could turn into a stop."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
