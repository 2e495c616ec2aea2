"""A proposer of vLLM that proposes nothing: the sessions bring their drafts, and the scheduler takes them from them.

vLLM sets itself up for drafts only where its configuration names what drafts.
"""

from collections.abc import Sequence
from typing import Any


class NoProposals:
    """vLLM's `custom_class` proposer."""

    def __init__(self, vllm_config: Any) -> None:
        """vLLM makes it with its configuration."""

    def load_model(self, target: Any) -> None:
        """vLLM offers the target's parts to any proposer; this one needs none."""

    def propose(self, sampled: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[list[int]]:
        """No draft for each row."""
        return [[] for _ in sampled]
