"""Priority classes, which order requests when there is more work than capacity.

The classes have names because numbers are ambiguous: in some systems the highest goes first, in others the lowest.
"""

from enum import StrEnum


class PriorityClass(StrEnum):
    """Priority classes, named like OpenAI's service tiers."""

    FLEX = "flex"
    DEFAULT = "default"
    PRIORITY = "priority"

    @property
    def level(self) -> int:
        """Priority in a verifier's queue; lower goes first. A long wait raises a generation above later ones."""
        return {PriorityClass.FLEX: 1, PriorityClass.DEFAULT: 0, PriorityClass.PRIORITY: -1}[self]
