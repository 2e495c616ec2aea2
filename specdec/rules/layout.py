"""Ragged batches as padded tensors: what the verification rules read of p and q̂."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, NoDistribution
from specdec.rules.draft import MAX_WEIGHT, SparseProbs
from specdec.rules.transfer import moved


def supports(probs: Sequence[SparseProbs], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids, int64 [D, K], and q̂, float64 [D, K], of D supports, of which some may be empty; 0 past the end of each."""
    if not probs:
        none = torch.zeros(0, 0, dtype=torch.int64, device=device)
        return none, none.double()
    sizes = torch.tensor([len(row.ids) for row in probs])
    ids, weights = (laid_out(torch.cat(part), sizes, int(sizes.max()), fill=0) for part in _columns(probs))
    ids, weights = moved(device, ids, weights)
    q = weights.double()
    return ids, q / q.sum(-1, keepdim=True).clamp_min_(1.0)


def laid_out(flat: Tensor, lengths: Tensor, width: int, fill: float) -> Tensor:
    """Values one after the other [D, ...] as rows of `width` [B, width, ...], the rest filled; on the host."""
    rows = torch.full((len(lengths), width, *flat.shape[1:]), fill, dtype=flat.dtype)
    rows[torch.arange(width) < lengths[:, None]] = flat
    return rows


def masses(p: Tensor, rows: int) -> Tensor:
    """Σp of each row, float64 [R]: float32 rows sum to 1 only to seven digits; for `check_masses` to judge.

    Raises:
        InternalError: p has another shape or type than `rows` distributions have.
    """
    if p.dim() != 2 or len(p) != rows or not p.is_floating_point():
        raise InternalError(f"p is {p.dtype} of shape {tuple(p.shape)}, its drafts need {rows} rows")
    return p.sum(-1, dtype=torch.float64).masked_fill_(p.amin(-1) < 0, -math.inf)


def check_masses(mass: Tensor) -> None:
    """Judge the sums [R] of a p, on the host.

    Raises:
        NoDistribution: a row is NaN, which is what `probabilities` makes of such logits on another device.
        InternalError: a row is negative, infinite or 0 throughout.
    """
    proper = (mass > 0) & (mass < math.inf)
    if not bool(proper.all()):
        error = NoDistribution if bool(mass.isnan().any()) else InternalError
        raise error(f"not a distribution in rows {(~proper).nonzero()[:, 0].tolist()} of p")


def check_probs(probs: Sequence[SparseProbs], slots: Sequence[int], tokens: Sequence[int], vocab_size: int) -> None:
    """Check every q̂, and that token i has a weight in `probs[slots[i]]`.

    Raises:
        FieldInvalid: a q̂ is empty, has ids that are not ascending or outside the vocabulary, has a weight outside
            1..65535, or lacks one of its tokens.
    """
    for row in probs:
        if not 0 < len(row.ids) == len(row.weights) or row.ids.is_floating_point() or row.weights.is_floating_point():
            raise FieldInvalid("a draft distribution needs as many integer weights as ids, and at least one", "probs")
    ids, weights = (torch.cat(part) for part in _columns(probs))
    owners = torch.arange(len(probs)).repeat_interleave(torch.tensor([len(row.ids) for row in probs]))
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise FieldInvalid(f"a draft distribution has an id outside the vocabulary of {vocab_size}", "probs")
    if not 1 <= int(weights.min()) <= int(weights.max()) <= MAX_WEIGHT:
        raise FieldInvalid(f"a draft distribution has a weight outside 1..{MAX_WEIGHT}", "probs")
    if bool(((ids[1:] <= ids[:-1]) & (owners[1:] == owners[:-1])).any()):
        raise FieldInvalid("the ids of a draft distribution are not ascending", "probs")
    held, wanted = owners * vocab_size + ids, torch.tensor(slots) * vocab_size + torch.tensor(tokens)
    if not bool((held[torch.searchsorted(held, wanted).clamp_max(len(held) - 1)] == wanted).all()):
        raise FieldInvalid("a draft token is not in its own distribution", "probs")


def _columns(probs: Iterable[SparseProbs]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    rows = list(probs)
    return tuple(row.ids for row in rows), tuple(row.weights for row in rows)
