"""Lenience at temperature 0: accept a draft that is nearly the best (Leviathan et al., arXiv 2211.17192, §A.5)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from specdec.errors import InternalError
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.sampling.transfer import to_device


class Drafted(Protocol):
    """A chain or a tree."""

    @property
    def tokens(self) -> Sequence[int]:
        """Its draft tokens, in the order of their rows."""


def lenient_greedy(
    p: Tensor,
    logits: Tensor,
    params: Sequence[SamplingParams],
    histories: Sequence[History],
    drafts: Sequence[Drafted],
    lenience: Sequence[float],
) -> Tensor:
    """Make p [R, V] accept near-best drafts: a row at temperature 0 becomes the one-hot of its draft token x iff
    p₁(x) ≥ ℓ·max p₁, where p₁ is made by the same parameters at temperature 1.

    `verify` then accepts x, and emits the argmax after a rejection. Rows with ℓ = 1 are not changed, not even in a tie.

    Args:
        p: the result of `probabilities` for `logits`; not modified.
        logits: [R, V], γ + 1 rows of each draft, one draft after the other.
        drafts: drafts of any length [B]; ℓ of trees is 1.
        lenience: ℓ in (0, 1] of each draft [B].

    Raises:
        InternalError: the number of rows of p or of the logits does not match the drafts.
    """
    if not len(p) == len(logits) == sum(len(draft.tokens) + 1 for draft in drafts):
        raise InternalError(f"{len(p)} rows of p and {len(logits)} of logits do not fit the drafts")
    # After the last token of each draft comes one row without a draft token.
    drawn = [(token, ell) for draft, ell in zip(drafts, lenience, strict=True) for token in (*draft.tokens, None)]
    asked = [
        (row, token, ell)
        for row, (token, ell) in enumerate(drawn)
        if token is not None and ell < 1.0 and params[row].temperature == 0.0
    ]
    if not asked:
        return p
    rows, tokens, ells = (list(column) for column in zip(*asked, strict=True))
    warm = [replace(params[row], temperature=1.0) for row in rows]
    ids, least = torch.tensor(tokens)[:, None], torch.tensor(ells, dtype=torch.float64)[:, None]
    own, x, ell = to_device(p.device, torch.tensor(rows), ids, least)
    law = probabilities(logits[own], warm, [histories[row] for row in rows])
    near = law.gather(1, x) >= ell.to(law.dtype) * law.amax(1, keepdim=True)
    lenient = p.clone()
    lenient[own] = torch.where(near, torch.zeros_like(law).scatter_(1, x, 1.0), p[own])
    return lenient
