"""Bugs in drafts that are looked up rather than sampled. Such a draft must be verified as a point mass."""

import pytest
import torch
from torch import Tensor

from specdec.rules import draft
from specdec.rules.acceptance import rejection, residual
from specdec.rules.draft import SparseProbs
from tests.conformance.bugs.bug import Bug, Law, everywhere
from tests.conformance.small_pair import VOCAB_SIZE


def always_kept(patch: pytest.MonkeyPatch) -> None:
    """A point mass is treated as q = p and kept whenever its probability is positive."""

    def planted(p_x: Tensor, q_x: Tensor, u: Tensor, ell: Tensor | None = None) -> Tensor:
        return rejection(torch.where((q_x == 1.0) & (p_x > 0.0), 1.0, p_x), q_x, u, ell)

    everywhere(patch, rejection, planted)


def flat_q(patch: pytest.MonkeyPatch) -> None:
    """The token that was looked up is sent with a uniform q̂."""
    flat = SparseProbs(torch.arange(VOCAB_SIZE), torch.ones(VOCAB_SIZE, dtype=torch.int64))
    patch.setattr(draft, "point_mass", lambda _: flat)


def mass_left_in(patch: pytest.MonkeyPatch) -> None:
    """After its rejection the drafted token may be drawn again."""

    def planted(p: Tensor, scale: Tensor, ids: Tensor, q: Tensor) -> Tensor:
        return residual(p, scale, ids, q.masked_fill(q == 1.0, 0.0))

    everywhere(patch, residual, planted)


BUGS = (
    Bug(
        "point mass always kept",
        Law.POINT_MASS,
        always_kept,
        ("enumerated point mass", "served prompt lookup"),
    ),
    Bug(
        "looked up, sent with a flat q̂",
        Law.POINT_MASS,
        flat_q,
        ("served prompt lookup", "served prompt lookup in blocks"),
    ),
    Bug("point mass drawn again", Law.POINT_MASS, mass_left_in, ("enumerated point mass", "served prompt lookup")),
)
