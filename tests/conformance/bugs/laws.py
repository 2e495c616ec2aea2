"""Bugs in the function from logits to a distribution, in the draw from it, and in judging siblings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdec.rules.multidraft import Choice, with_replacement, without_replacement
from specdec.sampling import distribution as sampling
from specdec.sampling.distribution import History, probabilities, sample
from specdec.sampling.filters import filtered_softmax
from specdec.sampling.params import SamplingParams
from tests.conformance.bugs.bug import Bug, Law, everywhere
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import Row

Params = Sequence[SamplingParams]


def filters_before_temperature(patch: pytest.MonkeyPatch) -> None:
    """Filters run before the division by the temperature, which changes the support."""

    def planted(scores: Tensor, params: Params) -> Tensor:
        warm = torch.tensor([each.temperature for each in params], dtype=scores.dtype)[:, None]
        return (filtered_softmax(scores, params).log() / warm).softmax(-1)

    patch.setattr(sampling, "distributions", planted)


def penalties_after_temperature(patch: pytest.MonkeyPatch) -> None:
    """Penalties are applied after the temperature and so are scaled differently."""
    edited = sampling._edited

    def planted(scores: Tensor, params: Params, histories: Sequence[History]) -> Tensor:
        warm = [max(each.temperature, 1e-6) for each in params]
        cold = [
            replace(
                each,
                presence_penalty=max(-2.0, min(2.0, each.presence_penalty * by)),
                frequency_penalty=max(-2.0, min(2.0, each.frequency_penalty * by)),
            )
            for each, by in zip(params, warm, strict=True)
        ]
        return edited(scores, cold, histories)

    patch.setattr(sampling, "_edited", planted)


def temperature_zero_is_one(patch: pytest.MonkeyPatch) -> None:
    """Greedy requests are verified against the distribution at temperature 1."""

    def planted(logits: Tensor, params: Params, histories: Sequence[History]) -> Tensor:
        warm = [replace(each, temperature=each.temperature or 1.0) for each in params]
        return probabilities(logits, warm, histories)

    everywhere(patch, probabilities, planted)


def last_of_the_best(patch: pytest.MonkeyPatch) -> None:
    """A tie between several best tokens goes to the last one."""

    def planted(logits: Tensor, params: Params, histories: Sequence[History]) -> Tensor:
        return probabilities(logits.flip(-1), params, histories).flip(-1)

    everywhere(patch, probabilities, planted)


def edited_in_place(patch: pytest.MonkeyPatch) -> None:
    """Penalties are written into the caller's logits."""

    def planted(logits: Tensor, params: Params, histories: Sequence[History]) -> Tensor:
        p = probabilities(logits, params, histories)
        logits.sub_(1.0)
        return p

    everywhere(patch, probabilities, planted)


def min_p_on_the_bonus_alone(patch: pytest.MonkeyPatch) -> None:
    """Min-p filters only the last row of a round. The rows of a session are consecutive and share their params."""

    def planted(logits: Tensor, params: Params, histories: Sequence[History]) -> Tensor:
        last = [after is not before for before, after in zip(params, [*params[1:], None], strict=True)]
        return probabilities(
            logits,
            [each if kept else replace(each, min_p=0.0) for each, kept in zip(params, last, strict=True)],
            histories,
        )

    patch.setattr(target_pass, "probabilities", planted)


def served_penalties_blind_to_drafts(patch: pytest.MonkeyPatch) -> None:
    """In `target_pass`, penalties see only the committed output."""
    patch.setattr(target_pass, "_histories", lambda row: iter([row.history] * (len(row.draft.tokens) + 1)))


def bonus_without_penalties(patch: pytest.MonkeyPatch) -> None:
    """The penalties of the bonus row do not see the drafts before it."""
    histories = target_pass._histories

    def planted(row: Row) -> Iterator[History]:
        return iter([*list(histories(row))[:-1], row.history])

    patch.setattr(target_pass, "_histories", planted)


def barred_by_its_end(patch: pytest.MonkeyPatch) -> None:
    """A bad word's last token is barred after its second-to-last token, even if the tokens before that do not match."""

    def planted(params: SamplingParams, output: Sequence[int]) -> list[int]:
        return [word[-1] for word in params.bad_words if tuple(output[-1:]) == word[:-1][-1:] or len(word) == 1]

    patch.setattr(SamplingParams, "barred", planted)


def zero_can_be_drawn(patch: pytest.MonkeyPatch) -> None:
    """The inverse CDF takes the first id whose sum reaches the number.

    At 0 it returns id 0, even if its probability is 0.
    """
    everywhere(patch, sample, lambda p, u: (p.cumsum(-1) >= (u * p.sum(-1))[:, None]).byte().argmax(-1))


def wrong_form(patch: pytest.MonkeyPatch) -> None:
    """Siblings drawn without replacement are judged as if drawn with replacement."""
    everywhere(patch, without_replacement, with_replacement)


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """Every sibling is judged against p itself."""

    def planted(p: Tensor, ids: Tensor, q: Tensor, children: Tensor, u: Tensor) -> Choice:
        choice = with_replacement(p, ids, q, children, u)
        alone = [with_replacement(p, ids, q, children[:, [k]], u[:, [k]]).child for k in range(children.shape[1])]
        for place in reversed(range(len(alone))):
            choice.child[alone[place] == 0] = place
        return choice

    everywhere(patch, with_replacement, planted)


BUGS = (
    Bug("filters before temperature", Law.ONE_DISTRIBUTION, filters_before_temperature, ("restated distribution",)),
    Bug("penalties after temperature", Law.ONE_DISTRIBUTION, penalties_after_temperature, ("restated distribution",)),
    Bug(
        "temperature 0 verified at 1",
        Law.GREEDY,
        temperature_zero_is_one,
        ("restated distribution", "enumerated temperature 0"),
    ),
    Bug("last of several best tokens", Law.GREEDY, last_of_the_best, ("ties at temperature 0",)),
    Bug("logits edited in place", Law.ONE_DISTRIBUTION, edited_in_place, ("logits left alone",)),
    Bug("min-p on the bonus row alone", Law.ONE_DISTRIBUTION, min_p_on_the_bonus_alone, ("served min-p",)),
    Bug(
        "served penalties blind to drafts",
        Law.ONE_DISTRIBUTION,
        served_penalties_blind_to_drafts,
        ("served penalties",),
    ),
    Bug("bonus without penalties", Law.ONE_DISTRIBUTION, bonus_without_penalties, ("served penalties",)),
    Bug("bad words blind to drafts", Law.ONE_DISTRIBUTION, served_penalties_blind_to_drafts, ("served bad words",)),
    Bug("bad word barred by its end", Law.ONE_DISTRIBUTION, barred_by_its_end, ("restated distribution",)),
    Bug("impossible id drawn at u = 0", Law.RESIDUAL, zero_can_be_drawn, ("impossible tokens at u = 0",)),
    Bug("siblings judged by the other rule", Law.SIBLINGS, wrong_form, ("enumerated tree", "sampled trees")),
    Bug("siblings judged against p itself", Law.SIBLINGS, forgetful, ("enumerated siblings",)),
)
