"""Bugs in drafts from another tokenizer: the probability mass of tokens that the target lacks.

Each bug first assigns that mass to an id of the target that is not shared.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.drafters.translated_model import TranslatedModel
from drafter_service.sessions.drafter import DraftedToken, NoGuess, ScheduledSession
from tests.conformance.bugs.bug import Bug, Law

STRANGE = 5
"""An id of the target for which the stranger of `small_pair` has no token."""

Step = Callable[[ModelDrafter, Tensor, Sequence[ScheduledSession]], Any]
_propose: Step = ModelDrafter._propose


def keep_the_mass(patch: pytest.MonkeyPatch, wrong: Step) -> None:
    """Assign the mass of all tokens that are not shared to STRANGE, and draft with `wrong`."""
    translated = TranslatedModel._translated

    def planted(model: TranslatedModel, logits: Tensor, computed: Sequence[bool]) -> Tensor:
        moved = translated(model, logits, computed)
        lost = [each for each in range(logits.shape[1]) if each not in model._translation.same.values()]
        moved[:, STRANGE] = logits[:, lost].logsumexp(-1)
        return moved

    patch.setattr(TranslatedModel, "_translated", planted)
    patch.setattr(ModelDrafter, "_propose", wrong)


def not_normalised(patch: pytest.MonkeyPatch) -> None:
    """The draft is drawn from the shared tokens alone, while q̂ includes the mass of the others."""

    def wrong(drafter: ModelDrafter, logits: Tensor, batch: Sequence[ScheduledSession]) -> list[DraftedToken]:
        shared = logits.clone()
        shared[:, STRANGE] = -torch.inf
        both = zip(_propose(drafter, shared, batch), _propose(drafter, logits, batch), strict=True)
        return [replace(drawn, probs=full.probs) for drawn, full in both]

    keep_the_mass(patch, wrong)


def dropped_after_the_draw(patch: pytest.MonkeyPatch) -> None:
    """The draft is drawn from all tokens and dropped if it is not shared. q̂ is the distribution before the drop."""

    def wrong(drafter: ModelDrafter, logits: Tensor, batch: Sequence[ScheduledSession]) -> list[Any]:
        drawn = _propose(drafter, logits, batch)
        return [NoGuess(each.session) if each.token == STRANGE else each for each in drawn]

    keep_the_mass(patch, wrong)


BUGS = (
    Bug("q̂ not normalised on shared tokens", Law.Q_AS_SAMPLED, not_normalised, ("translated rejection",)),
    Bug("tokens not shared dropped after the draw", Law.USE, dropped_after_the_draw, ("translated rejection",)),
)
