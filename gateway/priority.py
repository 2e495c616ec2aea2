"""Who goes first when there is more to do than can be done; classes have names, for numbers mean opposite things."""

from enum import StrEnum


class PriorityClass(StrEnum):
    """As OpenAI's service tiers are named."""

    FLEX = "flex"
    DEFAULT = "default"
    PRIORITY = "priority"

    @property
    def level(self) -> int:
        """As verifiers rank generations: less goes first, and none waits forever."""
        return {PriorityClass.FLEX: 1, PriorityClass.DEFAULT: 0, PriorityClass.PRIORITY: -1}[self]
