"""Bugs in drafts that a model draws where a local source has guessed them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

import pytest

from drafter_service.drafters.model_drafter import ModelDrafter, _Chain
from drafter_service.sessions.drafter import DraftedToken, DraftFailure, StepResult
from tests.conformance.bugs.bug import Bug, Law

_SERVED = ("served guesses",)
Drawn = Sequence[DraftedToken | DraftFailure]


def _planted(patch: pytest.MonkeyPatch, wrong: "type[_Wrong]") -> None:
    confirmed = ModelDrafter._confirmed

    def planted(drafter: ModelDrafter, chain: _Chain, drawn: Drawn) -> list[StepResult]:
        return confirmed(drafter, chain, wrong.drawn(chain, drawn))

    patch.setattr(ModelDrafter, "_confirmed", planted)


class _Wrong:
    @staticmethod
    def drawn(chain: _Chain, drawn: Drawn) -> Drawn:
        """Return the draws of a chain's rows as the bug has them."""
        raise NotImplementedError


class _GuessesAsDraws(_Wrong):
    @staticmethod
    def drawn(chain: _Chain, drawn: Drawn) -> Drawn:
        return [
            replace(each, token=guess) if guess is not None and isinstance(each, DraftedToken) else each
            for each, guess in zip_longest(drawn, chain.guesses)
        ]


class _NextRow(_Wrong):
    @staticmethod
    def drawn(chain: _Chain, drawn: Drawn) -> Drawn:
        shifted = [
            replace(own, probs=after.probs)
            if isinstance(own, DraftedToken) and isinstance(after, DraftedToken)
            else own
            for own, after in pairwise(drawn)
        ]
        return [*shifted, drawn[-1]]


def guesses_as_draws(patch: pytest.MonkeyPatch) -> None:
    """A guess is sent in place of the model's own draw, with the model's q̂."""
    _planted(patch, _GuessesAsDraws)


def next_row(patch: pytest.MonkeyPatch) -> None:
    """A draft is sent with the q̂ of the row after its own."""
    _planted(patch, _NextRow)


BUGS = (
    Bug("guess sent as a draw from q", Law.Q_AS_SAMPLED, guesses_as_draws, _SERVED),
    Bug("q̂ of the row after the guess", Law.Q_AS_SAMPLED, next_row, _SERVED),
)
