"""Bugs in the rules: the decision to keep a draft, and the distribution of the token after it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specdec.rules.acceptance import block, block_h, block_pi, rejection, residual
from specdec.rules.draft import Draft, Verdict
from specdec.rules.rng import Lane, uniform
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from specdec.sampling.distribution import sample
from tests.conformance.bugs.bug import Bug, Law, everywhere

Keys = Sequence[int]


def ratio_inverted(patch: pytest.MonkeyPatch) -> None:
    """A draft is kept with probability q/p."""
    everywhere(patch, rejection, lambda p_x, q_x, u, ell=None: (u * p_x < q_x).cumprod(1).sum(1))


def divided_by_q(patch: pytest.MonkeyPatch) -> None:
    """A draft is kept if u ≤ p/(q + ε), where ε avoids a division by zero."""
    everywhere(patch, rejection, lambda p_x, q_x, u, ell=None: (u <= p_x / (q_x + 1e-10)).cumprod(1).sum(1))


def or_equal(patch: pytest.MonkeyPatch) -> None:
    """The comparison is `<=`, which keeps a token of p = 0 at u = 0."""
    everywhere(patch, rejection, lambda p_x, q_x, u, ell=None: (u * q_x <= p_x).cumprod(1).sum(1))


def p_alone(patch: pytest.MonkeyPatch) -> None:
    """A sampled draft is kept with probability p(x), the rule for a point mass."""
    everywhere(patch, rejection, lambda p_x, q_x, u, ell=None: (u < p_x).cumprod(1).sum(1))


def lenient_by_default(patch: pytest.MonkeyPatch) -> None:
    """ℓ = 0.9 applies to every session."""
    everywhere(patch, rejection, lambda p_x, q_x, u, ell=None: (0.9 * u * q_x < p_x).cumprod(1).sum(1))


def lenience_inverted(patch: pytest.MonkeyPatch) -> None:
    """A draft is kept with probability ℓ·p/q, which is strict instead of lenient and still not exact."""
    everywhere(patch, rejection, lambda p_x, q_x, u, ell=None: (u * q_x < p_x * ell[:, None]).cumprod(1).sum(1))


def likeliest_kept(patch: pytest.MonkeyPatch) -> None:
    """A draft of high p is always kept, as in a greedy check."""
    everywhere(patch, rejection, lambda p_x, q_x, u, ell=None: ((u * q_x < p_x) | (p_x > 0.15)).cumprod(1).sum(1))


def no_residual(patch: pytest.MonkeyPatch) -> None:
    """After a rejection the token is drawn from p."""
    everywhere(patch, residual, lambda p, scale, ids, q: p)


def residual_without_a_rest(patch: pytest.MonkeyPatch) -> None:
    """(p - q)₊ is normalised even if it is 0."""

    def planted(p: Tensor, scale: Tensor, ids: Tensor, q: Tensor) -> Tensor:
        left = (scale[:, None] * p).scatter_add(1, ids, -q).clamp_min(0.0)
        return left / left.sum(1, keepdim=True)

    everywhere(patch, residual, planted)


def residual_of_unfiltered_p(patch: pytest.MonkeyPatch) -> None:
    """The residual includes mass of p that the filters removed."""
    everywhere(patch, residual, lambda p, scale, ids, q: residual(p.clamp_min(0.02), scale, ids, q))


def p_without_the_draft(patch: pytest.MonkeyPatch) -> None:
    """If only q(x) is known, the residual is p without x."""

    def planted(mode: Mode, p: Tensor, drafts: Sequence[Draft], seeds: Keys, at: Keys, *rest: object) -> list[Verdict]:
        verdicts = verify(mode, p, drafts, seeds, at, *rest)  # type: ignore[arg-type]
        first = 0
        for b, (draft, verdict) in enumerate(zip(drafts, verdicts, strict=True)):
            if verdict.accepted < len(draft.tokens):
                row = p[[first + verdict.accepted]].clone()
                row[0, draft.tokens[verdict.accepted]] = 0.0
                token = int(sample(row, uniform([seeds[b]], [at[b] + verdict.accepted], Lane.RESIDUAL)))
                verdicts[b] = Verdict((*verdict.tokens[:-1], token), verdict.accepted, verdict.drafted)
            first += len(draft.tokens) + 1
        return verdicts

    everywhere(patch, verify, planted)


def bonus_after_a_rejection(patch: pytest.MonkeyPatch) -> None:
    """The recovered token is followed by a token from the next row, which belongs to the rejected draft."""

    def planted(mode: Mode, p: Tensor, drafts: Sequence[Draft], seeds: Keys, at: Keys, *rest: object) -> list[Verdict]:
        verdicts = verify(mode, p, drafts, seeds, at, *rest)  # type: ignore[arg-type]
        first = 0
        for b, (draft, verdict) in enumerate(zip(drafts, verdicts, strict=True)):
            if verdict.accepted < len(draft.tokens):
                row = p[[first + verdict.accepted + 1]]
                token = int(sample(row, uniform([seeds[b]], [at[b] + verdict.accepted + 1], Lane.BONUS)))
                verdicts[b] = Verdict((*verdict.tokens, token), verdict.accepted, verdict.drafted)
            first += len(draft.tokens) + 1
        return verdicts

    everywhere(patch, verify, planted)


def bonus_from_the_row_before(patch: pytest.MonkeyPatch) -> None:
    """After a full acceptance the token is drawn from p at the last draft's own position."""

    def planted(mode: Mode, p: Tensor, drafts: Sequence[Draft], *rest: object) -> list[Verdict]:
        sizes = torch.tensor([len(draft.tokens) + 1 for draft in drafts])
        last = (sizes.cumsum(0) - 1)[sizes > 1]
        p = p.clone()
        p[last] = p[last - 1]
        return verify(mode, p, drafts, *rest)  # type: ignore[arg-type]

    everywhere(patch, verify, planted)


def first_failure(patch: pytest.MonkeyPatch) -> None:
    """Block verification stops at the first failure."""
    everywhere(patch, block, lambda h, eta: (eta < h).cumprod(1).sum(1))


def unscaled_block_residual(patch: pytest.MonkeyPatch) -> None:
    """Block verification uses the residual of the token rule."""
    everywhere(patch, residual, lambda p, scale, ids, q: residual(p, torch.ones_like(scale), ids, q))


def unclamped_pi(patch: pytest.MonkeyPatch) -> None:
    """π is the product of all ratios."""

    def planted(p_x: Tensor, q_x: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(p_x[:, :1]), (p_x / q_x).cumprod(1)], dim=1)

    everywhere(patch, block_pi, planted)


def token_rule_h(patch: pytest.MonkeyPatch) -> None:
    """Every h is π, as if each position were the last."""
    everywhere(patch, block_h, lambda pi, p_s, q_s: pi[:, 1:])


BUGS = (
    Bug("ratio inverted", Law.ACCEPT, ratio_inverted, ("enumerated rejection",)),
    Bug("division by q + ε", Law.ACCEPT, divided_by_q, ("enumerated rejection", "impossible tokens at u = 0")),
    Bug("`<=` at p = 0", Law.ACCEPT, or_equal, ("impossible tokens at u = 0",)),
    Bug("sampled draft kept with p(x)", Law.POINT_MASS, p_alone, ("enumerated rejection",)),
    Bug("likely draft kept outright", Law.ACCEPT, likeliest_kept, ("enumerated rejection", "sampled rejection")),
    Bug("lenient by default", Law.LENIENCE, lenient_by_default, ("enumerated rejection",)),
    Bug("lenience inverted", Law.LENIENCE, lenience_inverted, ("published lenience",)),
    Bug(
        "residual not taken",
        Law.RESIDUAL,
        no_residual,
        ("enumerated rejection", "enumerated block", "served rejection", "served block"),
    ),
    Bug("residual of 0 normalised", Law.RESIDUAL, residual_without_a_rest, ("residuals of p against p",)),
    Bug(
        "residual of unfiltered p",
        Law.RESIDUAL,
        residual_of_unfiltered_p,
        ("served min-p",),
    ),
    Bug("residual is p without the draft", Law.RESIDUAL, p_without_the_draft, ("sampled rejection",)),
    Bug("bonus after a rejection", Law.RESIDUAL, bonus_after_a_rejection, ("sampled top-k",)),
    Bug(
        "bonus from the row before",
        Law.RESIDUAL,
        bonus_from_the_row_before,
        ("enumerated rejection", "served rejection", "served coupling"),
    ),
    Bug("block stops at the first failure", Law.BLOCK, first_failure, ("enumerated block",)),
    Bug("block residual not scaled", Law.BLOCK, unscaled_block_residual, ("enumerated block",)),
    Bug("block π not clamped", Law.BLOCK, unclamped_pi, ("enumerated block",)),
    Bug("block h is π everywhere", Law.BLOCK, token_rule_h, ("enumerated block",)),
)
