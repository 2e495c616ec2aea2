"""Finds stop strings in text that arrives in parts."""

from collections.abc import Sequence


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The stop string that ends first, behind the index where it begins; None without any.

    Of several that end at one place, it is the one that begins first.
    """
    found = ((start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0)
    first = min(found, default=None)
    return first and first[1:]


def held_length(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that more text could complete to a stop string."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
