"""Input checks of a verdict: rows of p must be distributions, and drafts must be well-formed."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, NoDistribution, TokenOutOfRange
from specdec.rules.draft import MAX_WEIGHT, Draft, JoinedProbs, SparseProbs, join_probs
from specdec.rules.speculation import Mode
from specdec.sampling.cache import parts


def masses(p: Tensor, rows: int) -> Tensor:
    """Σp of each row, float64 [R], for `proper_counts`: float32 rows sum to 1 to seven digits only.

    Raises:
        InternalError: p is not floating point, or its shape is not [rows, V].
    """
    if p.dim() != 2 or len(p) != rows or not p.is_floating_point():
        raise InternalError(f"p is {p.dtype} of shape {tuple(p.shape)}, its drafts need {rows} rows")
    if not p.is_cpu:
        return _masses(p)
    if p.dtype != torch.float32:  # which no model gives
        return masses_on_host(p)
    mass: Tensor = torch.ops.specdec.masses(p)
    return mass


def masses_on_host(p: Tensor) -> Tensor:
    """PyTorch implementation of `masses`."""
    return torch.cat([p.new_zeros(0, dtype=torch.float64), *(_masses(p[part]) for part in parts(*p.shape))])


# `host_judge.cpp` of the engine registers an implementation for the CPU, if it is available.
torch.library.define("specdec::masses", "(Tensor p) -> Tensor")
torch.library.impl("specdec::masses", "CompositeExplicitAutograd", masses_on_host)


def _masses(p: Tensor) -> Tensor:
    return p.sum(-1, dtype=torch.float64).masked_fill_(p.amin(-1) < 0, -math.inf)


def proper_counts(mass: Tensor, first: Sequence[int], reached: Sequence[int]) -> list[int]:
    """Number of rows of each verdict, from its first row, before the first that is not a distribution [B].

    Only rows that the verdict read are checked: rows after a rejected draft must not change the verdict.

    Args:
        mass: the result of `masses`, on the host [R].
        first: row of p of each draft's first position [B].
        reached: number of rows that each verdict read [B].

    Raises:
        NoDistribution: the first row of a draft is NaN, as `probabilities` returns for logits without a distribution.
        InternalError: the first row of a draft has a negative number, is infinite or is 0 everywhere.
    """
    valid = [0.0 < each < math.inf for each in mass.tolist()]
    if all(valid):
        return list(reached)
    counts = [
        next((step for step in range(rows) if not valid[start + step]), rows)
        for start, rows in zip(first, reached, strict=True)
    ]
    refused = [start for start, count in zip(first, counts, strict=True) if not count]
    if refused:
        error = NoDistribution if bool(mass[refused].isnan().any()) else InternalError
        raise error(f"not a distribution in rows {refused} of p")
    return counts


def check_drafts(mode: Mode, drafts: Sequence[Draft], vocab_size: int) -> JoinedProbs | None:
    """Refuse malformed drafts. Called when a draft arrives, so that a malformed draft does not enter a batch.

    Returns:
        Every q̂, checked and joined; None if the mode needs none or there are no tokens.

    Raises:
        TokenOutOfRange: a draft token is not in the vocabulary.
        FieldInvalid: the mode takes no drafts; a token has no q̂; or `check_probs` refuses a q̂.
    """
    tokens = [token for draft in drafts for token in draft.tokens]
    if not all(0 <= token < vocab_size for token in tokens):
        raise TokenOutOfRange(f"a draft token is outside the vocabulary of {vocab_size}", "tokens")
    if mode is Mode.OFF and tokens:
        raise FieldInvalid("mode off takes no drafts", "mode")
    if mode in (Mode.REJECTION, Mode.BLOCK) and tokens:
        if any(len(draft.tokens) != len(draft.probs) for draft in drafts):
            raise FieldInvalid("each draft token needs its distribution", "probs")
        laws = [probs for draft in drafts for probs in draft.probs]
        return check_probs(laws, range(len(tokens)), tokens, vocab_size)
    return None


def check_probs(
    probs: Sequence[SparseProbs], slots: Sequence[int], tokens: Sequence[int], vocab_size: int
) -> JoinedProbs:
    """Check every q̂, and that token i has a weight in `probs[slots[i]]`. Return the q̂ joined.

    Raises:
        FieldInvalid: a q̂ is empty, its ids are not ascending or are outside the vocabulary, a weight is outside
            1..65535, or one of its tokens is missing.
    """
    for row in probs:
        if (
            not 0 < row.ids.numel() == row.weights.numel()
            or row.ids.is_floating_point()
            or row.weights.is_floating_point()
        ):
            raise FieldInvalid("a draft distribution needs as many integer weights as ids, and at least one", "probs")
        if len(row.ids) > vocab_size:  # before they are joined, which takes memory
            raise FieldInvalid(f"a draft distribution has more ids than the vocabulary of {vocab_size}", "probs")
    sizes, ids, weights = joined = join_probs(probs)
    if not 0 <= ids.min() <= ids.max() < vocab_size:
        raise FieldInvalid(f"a draft distribution has an id outside the vocabulary of {vocab_size}", "probs")
    if not 1 <= weights.min() <= weights.max() <= MAX_WEIGHT:
        raise FieldInvalid(f"a draft distribution has a weight outside 1..{MAX_WEIGHT}", "probs")
    held = np.repeat(np.arange(len(probs)) * vocab_size, sizes) + ids  # ascends from one q̂ to the next
    if (held[1:] <= held[:-1]).any():
        raise FieldInvalid("the ids of a draft distribution are not ascending", "probs")
    wanted = np.array(slots) * vocab_size + np.array(tokens)
    if (held.take(held.searchsorted(wanted), mode="clip") != wanted).any():
        raise FieldInvalid("a draft token is not in its own distribution", "probs")
    return joined
