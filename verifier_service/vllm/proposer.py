"""Proposer for vLLM that proposes nothing: the scheduler takes drafts from the rows of the sessions.

vLLM enables speculative decoding only if its configuration names a proposer.
"""

from collections.abc import Sequence
from typing import Any


class NoProposals:
    """Empty proposer for vLLM's method `custom_class`."""

    def __init__(self, vllm_config: Any) -> None:
        """Accept vLLM's configuration, which is not used."""

    def load_model(self, target: Any) -> None:
        """Ignore the target's parts, which vLLM offers to every proposer."""

    def propose(self, sampled: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return an empty draft for each row."""
        return [[] for _ in sampled]
