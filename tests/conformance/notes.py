"""The function with which tests add lines to the tables at the end of a run."""

from collections.abc import Callable

Note = Callable[[str, str], None]
"""Add a line to the table of that title."""
