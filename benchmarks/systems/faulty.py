"""A faulty drafter with the options of the real one: `python -m benchmarks.systems.faulty slow --config FILE`."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal
from unittest import mock

import torch

from drafter_service import app
from drafter_service.__main__ import main
from drafter_service.config import DrafterSettings
from drafter_service.sessions.drafter import DraftedToken, Drafter, ScheduledSession, StepResult
from specdec.rules.draft import MAX_WEIGHT, SparseProbs

Fault = Literal["slow", "lying"]
_SLOW_SECONDS = 0.1
"""Additional seconds of each step."""
_load = app.load_drafter


class Faulty:
    """A Drafter that is slow, or that drafts tokens it did not draw and claims certainty for them."""

    def __init__(self, drafter: Drafter, fault: Fault) -> None:
        self._drafter = drafter
        self._fault = fault
        self.info = drafter.info
        self.sequences = drafter.sequences

    def step(self, batch: Sequence[ScheduledSession]) -> Sequence[StepResult]:
        """Draft like the wrapped drafter, with the fault."""
        results = self._drafter.step(batch)
        if self._fault == "slow":
            time.sleep(_SLOW_SECONDS)
            return results
        return [self._lie(result) if isinstance(result, DraftedToken) else result for result in results]

    def _lie(self, drafted: DraftedToken) -> DraftedToken:
        token = (drafted.token * 7 + 13) % self.info.vocab_size
        certain = SparseProbs(torch.tensor([token]), torch.tensor([MAX_WEIGHT]))
        return replace(drafted, token=token, probs=None if drafted.probs is None else certain)


def serve(fault: Fault, arguments: Sequence[str]) -> int:
    """Run the drafter's command with the fault."""

    def load(settings: DrafterSettings) -> Drafter:
        return Faulty(_load(settings), fault)

    with mock.patch.object(app, "load_drafter", load):
        return main(arguments)


if __name__ == "__main__":
    sys.exit(serve("lying" if sys.argv[1] == "lying" else "slow", sys.argv[2:]))
