"""What a test notes for the tables at the end of a run."""

from collections.abc import Callable

Note = Callable[[str, str], None]
"""Adds a line to the table of that title."""
