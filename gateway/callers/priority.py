"""Which requests go first when there is more work than room.

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
        """The priority of a verifier's queue: lower goes first; a generation that waits long goes before later ones."""
        return {PriorityClass.FLEX: 1, PriorityClass.DEFAULT: 0, PriorityClass.PRIORITY: -1}[self]
