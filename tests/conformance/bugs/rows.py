"""Bugs in one session of a verifier's pass: its lenience, its bonus token, and the log probabilities of its tokens."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdec.rules.acceptance import rejection
from specdec.rules.draft import Verdict
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from tests.conformance.bugs.bug import Bug, Law, everywhere
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import Row

Params = Sequence[SamplingParams]


def lenience_ignored(patch: pytest.MonkeyPatch) -> None:
    """ℓ is accepted and has no effect."""
    everywhere(patch, rejection, lambda p_x, q_x, u, ell=None: rejection(p_x, q_x, u))


def lenience_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """One lenient row makes every row of the pass lenient."""

    def planted(rows: Sequence[Row]) -> list[float] | None:
        least = min(row.call.speculation.lenience for row in rows)
        return [least] * len(rows) if least < 1.0 else None

    patch.setattr(target_pass, "_lenience", planted)


def bonus_of_any_id(patch: pytest.MonkeyPatch) -> None:
    """The last row of a round is not masked. The rows of a session are consecutive and share their params."""

    def planted(logits: Tensor, params: Params, histories: Sequence[History]) -> Tensor:
        last = [after is not before for before, after in zip(params, [*params[1:], None], strict=True)]
        free = [replace(each, allowed_token_ids=()) if ends else each for each, ends in zip(params, last, strict=True)]
        return probabilities(logits, free, histories)

    patch.setattr(target_pass, "probabilities", planted)


def masked_row_is_flat(patch: pytest.MonkeyPatch) -> None:
    """If every id is masked or the logits are not finite, the token is drawn uniformly."""

    def planted(logits: Tensor, params: Params, histories: Sequence[History]) -> Tensor:
        p = probabilities(logits, params, histories)
        return torch.where(p.sum(-1, keepdim=True).isnan(), 1.0 / logits.shape[-1], p)

    everywhere(patch, probabilities, planted)


def logprobs_of_p(patch: pytest.MonkeyPatch) -> None:
    """Log probabilities are taken after temperature and filters."""
    scored = target_pass._scored

    def planted(
        rows: Sequence[Row], starts: Sequence[int], logits: Tensor, verdicts: Sequence[Verdict]
    ) -> list[Verdict]:
        params = [row.call.sampling for row in rows for _ in range(len(row.draft.tokens) + 1)]
        p = probabilities(logits, params, [History()] * len(params))
        return scored(rows, starts, p.clamp_min(1e-30).log(), verdicts)

    patch.setattr(target_pass, "_scored", planted)


def logprobs_of_q(patch: pytest.MonkeyPatch) -> None:
    """An accepted token has the drafter's log probability."""
    scored = target_pass._scored

    def planted(rows: Sequence[Row], *others: object) -> list[Verdict]:
        return [_drafters(row, verdict) for row, verdict in zip(rows, scored(rows, *others), strict=True)]  # type: ignore[arg-type]

    patch.setattr(target_pass, "_scored", planted)


def _drafters(row: Row, verdict: Verdict) -> Verdict:
    own = list(verdict.logprobs)
    drafted = list(zip(row.draft.tokens, row.draft.probs, strict=False))
    for at, (token, law) in enumerate(drafted[: verdict.accepted]):
        q = float(law.weights[law.ids == token].sum() / law.weights.sum())
        own[at] = replace(own[at], logprob=float(torch.tensor(q).log()))
    return verdict._replace(logprobs=tuple(own))


BUGS = (
    Bug("lenience ignored", Law.LENIENCE, lenience_ignored, ("published lenience", "served lenience (lossy)")),
    Bug("lenience of the whole batch", Law.LENIENCE, lenience_of_the_batch, ("served beside lenience",)),
    Bug("bonus of any id", Law.ONE_DISTRIBUTION, bonus_of_any_id, ("served allowed ids",)),
    Bug("row without a token served flat", Law.VOCABULARY, masked_row_is_flat, ("rows without a token",)),
    Bug("logprobs of the filtered p", Law.LOGPROBS, logprobs_of_p, ("served logprobs",)),
    Bug("logprobs of the draft's q", Law.LOGPROBS, logprobs_of_q, ("served logprobs",)),
)
