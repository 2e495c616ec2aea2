"""The two ratio rules: number of drafts kept, and the distribution that the next token is drawn from.

Shapes: B drafts, Γ the length of the longest, K the size of the largest support, V the vocabulary; all float64. Past a
draft's own length p_x = 0 and q_x = 1, and past a support q_s = 0, so padding is never kept and takes nothing from p.
A row of p that is not a distribution counts as 0 everywhere. No draft is kept at that row, and the drafts before it are
judged as if the draft ended there.

Only `sample_rest` is as wide as V; everything else costs O(K) a position. K is V only for the uniform q̂ of random
drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.rules.padding import FlatDrafts, PaddedDrafts, pad_drafts
from specdec.rules.speculation import Mode
from specdec.sampling.cache import parts
from specdec.sampling.distribution import sample

_DIGITS = 6
"""Decimal digits of an overlap. Devices add in different orders, so the last digits of a float64 differ."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Inputs of the residual distributions that last tokens are drawn from: scaled rows of p and q̂ to subtract."""

    rows: Tensor
    """Rows of p, int64 [B]."""
    scale: Tensor
    """π_τ in the block rule, 1 in token rejection, float64 [B]."""
    ids: Tensor
    """Supports of the q̂ of the rejected positions, int64 [B, K]."""
    q: Tensor
    """Draft probabilities over them, float64 [B, K]; 0 past a support, and all 0 where no draft was rejected."""

    def part(self, members: slice) -> "Rest":
        """Select the drafts in the slice `members`."""
        return Rest(self.rows[members], self.scale[members], self.ids[members], self.q[members])


def judge_on_host(mode: Mode, p: Tensor, mass: Tensor, flat: FlatDrafts) -> tuple[Tensor, Tensor]:
    """Judge drafts on the host. Return the number of tokens kept and the next token, both int64 [B].

    Arguments as in `judge`.
    """
    if p.dtype != torch.float32:  # which no model gives
        return judge_by_torch(p, mass, *flat, mode is Mode.BLOCK)
    found: tuple[Tensor, Tensor] = torch.ops.specdec.judge(p, mass, *flat, mode is Mode.BLOCK)
    return found


def judge_by_torch(p: Tensor, mass: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """PyTorch implementation of `judge_on_host`; `args` are the fields of `flat` and whether the mode is block."""
    *flat, by_block = args
    padded = pad_drafts(FlatDrafts(*flat))
    tau, rest = judge(Mode.BLOCK if by_block else Mode.REJECTION, p, mass, padded)
    u = padded.last.gather(1, tau[:, None])[:, 0]
    # A draw needs several 8-byte numbers for each number of p, so fewer rows fit in the cache.
    drawn = [sample_rest(p, mass, rest.part(part), u[part]) for part in parts(len(u), 16 * p.shape[1])]
    return tau, torch.cat(drawn)


# `host_judge.cpp` of the engine registers an implementation for the CPU, if it is available.
_PARTS = ", ".join(f"Tensor {name}" for name in FlatDrafts._fields)
torch.library.define("specdec::judge", f"(Tensor p, Tensor mass, {_PARTS}, bool by_block) -> (Tensor, Tensor)")
torch.library.impl("specdec::judge", "CompositeExplicitAutograd", judge_by_torch)


def judge(mode: Mode, p: Tensor, mass: Tensor, padded: PaddedDrafts) -> tuple[Tensor, Rest]:
    """Return τ, the number of tokens kept of each draft, int64 [B], and the source of each last token.

    Does not sync with the device.

    Args:
        mode: rejection or block.
        p: target distributions [R, V].
        mass: the sum of each row of p, float64 [R].
        padded: the drafts, on the same device.
    """
    rows, q_s = _rows(padded, len(p)), padded.weights.double()
    q_s = q_s / q_s.sum(-1, keepdim=True).clamp_min_(1.0)
    p_x, q_x = _drafted(p, mass, padded, rows, q_s)
    scale = torch.ones_like(mass[padded.first])
    if mode is Mode.BLOCK:
        pi = block_pi(p_x, q_x)
        tau = block(block_h(pi, _supported(p, mass, padded, rows), q_s), padded.u)
        scale = pi.gather(1, tau[:, None])[:, 0]
    else:
        tau = rejection(p_x, q_x, padded.u, padded.lenience)
    batch = torch.arange(len(tau), device=p.device)
    return tau, Rest(padded.first + tau, scale, padded.ids[batch, tau], q_s[batch, tau])


def sample_rest(p: Tensor, mass: Tensor, rest: Rest, u: Tensor) -> Tensor:
    """Draw each last token at u [B], int64 [B]; `mass` is the sum of each row of p [R, V], float64 [R]."""
    law = p[rest.rows].double() / mass[rest.rows, None]
    return sample(residual(law, rest.scale, rest.ids, rest.q), u)


def thresholds(mode: Mode, p: Tensor, mass: Tensor, padded: PaddedDrafts) -> tuple[Tensor, Tensor, Tensor]:
    """p_x, q_x and the acceptance threshold of u for each draft token, each [B, Γ]; arguments as in `judge`."""
    rows, q_s = _rows(padded, len(p)), padded.weights.double()
    q_s = q_s / q_s.sum(-1, keepdim=True).clamp_min_(1.0)
    p_x, q_x = _drafted(p, mass, padded, rows, q_s)
    if mode is Mode.BLOCK:
        return p_x, q_x, block_h(block_pi(p_x, q_x), _supported(p, mass, padded, rows), q_s)
    return p_x, q_x, (p_x / (q_x * padded.lenience[:, None])).clamp_max(1.0)


def overlaps_on_host(p: Tensor, mass: Tensor, flat: FlatDrafts, tau: Sequence[int]) -> list[tuple[float, ...]]:
    """Σ min(p/ℓ, q̂) of each judged draft: the τ that are kept, and the rejected one.

    The sum is the probability with which token rejection keeps a draft of the position, so its mean over judged drafts
    is α (Leviathan et al., arXiv 2211.17192, Corollary 3.6). Whether the drafts were kept has the same mean and more
    variance. Drafts after a rejection are left out, because a draft's prefix decides whether it is judged.

    Args:
        p, mass: as in `judge`.
        flat: drafts of token rejection.
        tau: number of tokens kept of each draft [B].
    """
    lengths, sizes = flat.lengths.numpy(), flat.sizes.numpy()
    if not len(sizes):
        return [()] * len(lengths)
    ends, supports = lengths.cumsum(), sizes.cumsum() - sizes
    rows = np.repeat(flat.first.numpy() - ends + lengths, lengths) + np.arange(len(sizes))
    scale = mass.numpy()[rows] * np.repeat(flat.lenience.numpy(), lengths)
    with np.errstate(divide="ignore", invalid="ignore"):  # a row of p that is not a distribution
        shares = p.numpy()[np.repeat(rows, sizes), flat.ids.numpy()] / np.repeat(scale, sizes)
    weights = flat.weights.numpy().astype(np.float64)
    q = weights / np.repeat(np.add.reduceat(weights, supports), sizes)
    kept = np.add.reduceat(np.minimum(np.nan_to_num(shares), q), supports).tolist()
    judged = zip((ends - lengths).tolist(), lengths.tolist(), tau, strict=True)
    return [judged_overlaps(kept[start : start + length], count) for start, length, count in judged]


def judged_overlaps(of_drafts: Sequence[float], kept: int) -> tuple[float, ...]:
    """The overlaps of the drafts that token rejection judged: those that are kept and the rejected one."""
    return tuple(round(each, _DIGITS) for each in of_drafts[: kept + 1])


def overlaps(p: Tensor, mass: Tensor, padded: PaddedDrafts) -> Tensor:
    """Σ min(p/ℓ, q̂) of each draft, float64 [B, Γ], as `overlaps_on_host` of the judged ones; no device sync."""
    rows, q_s = _rows(padded, len(p)), padded.weights.double()
    q_s = q_s / q_s.sum(-1, keepdim=True).clamp_min_(1.0)
    shares = _supported(p, mass, padded, rows) / padded.lenience[:, None, None]
    return torch.minimum(shares, q_s).sum(-1)[:, :-1]


def _rows(padded: PaddedDrafts, rows: int) -> Tensor:
    """Row of p of each position of the drafts, int64 [B, Γ+1]; past a draft's own positions it is any row."""
    steps = torch.arange(padded.ids.shape[1], device=padded.ids.device)
    return (padded.first[:, None] + steps).clamp_max_(rows - 1)


def _drafted(p: Tensor, mass: Tensor, padded: PaddedDrafts, rows: Tensor, q_s: Tensor) -> tuple[Tensor, Tensor]:
    """p_x and q_x [B, Γ], the target and draft probability of each draft token; 0 and 1 past a draft's own length."""
    rows = rows[:, :-1]
    beyond = torch.arange(rows.shape[1], device=p.device) >= padded.lengths[:, None]
    p_x = (p[rows, padded.tokens].double() / mass[rows]).nan_to_num_(0.0)
    q_x = ((padded.ids[:, :-1] == padded.tokens[:, :, None]) * q_s[:, :-1]).sum(-1)
    return p_x.masked_fill_(beyond, 0.0), q_x.masked_fill_(beyond, 1.0)


def _supported(p: Tensor, mass: Tensor, padded: PaddedDrafts, rows: Tensor) -> Tensor:
    """The target's probabilities over each position's support [B, Γ+1, K]."""
    return (p[rows[:, :, None], padded.ids].double() / mass[rows][:, :, None]).nan_to_num_(0.0)


def rejection(p_x: Tensor, q_x: Tensor, u: Tensor, lenience: Tensor | None = None) -> Tensor:
    """Number of drafts kept, τ, int64 [B], by token rejection (Leviathan et al., arXiv 2211.17192, Algorithm 1).

    Draft x is kept iff u·q(x) < p(x): with probability min(1, p/q), never when p(x) = 0, and without a division.
    With lenience ℓ it is kept iff u·ℓ·q(x) < p(x) (the same paper, §A.5). That is not exact, but the residual is the
    same, so no token gets a probability above p(x)/ℓ.

    Args:
        p_x: target probability of each draft token [B, Γ].
        q_x: draft probability of each draft token [B, Γ].
        u: uniforms in [0, 1) [B, Γ].
        lenience: ℓ in (0, 1] of each draft [B]; None is 1, exact.
    """
    bar = u * q_x if lenience is None else u * q_x * lenience[:, None]
    return (bar < p_x).cumprod(1).sum(1)


def block(h: Tensor, eta: Tensor) -> Tensor:
    """Number of drafts kept, τ, int64 [B], by block verification (Sun et al., arXiv 2403.10444, Algorithm 2).

    τ is the LARGEST i with ηᵢ < hᵢ, whether or not the smaller ones pass; stopping at the first failure is biased.

    Args:
        h: from `block_h` [B, Γ].
        eta: uniforms in [0, 1) [B, Γ].
    """
    order = torch.arange(1, h.shape[1] + 1, device=h.device)
    none = order.new_zeros(len(h), 1)
    return torch.cat([none, (eta < h) * order], dim=1).amax(1)


def block_pi(p_x: Tensor, q_x: Tensor) -> Tensor:
    """The prefix ratios π [B, Γ+1]: π₀ = 1 and πᵢ = min(1, πᵢ₋₁·pᵢ(xᵢ)/qᵢ(xᵢ)). Takes p_x and q_x [B, Γ], q_x > 0."""
    pi = [torch.ones_like(p_x.sum(1))]
    for ratio in (p_x / q_x).unbind(1):
        pi.append((pi[-1] * ratio).clamp_max(1.0))
    return torch.stack(pi, dim=1)


def block_h(pi: Tensor, p_s: Tensor, q_s: Tensor) -> Tensor:
    """The thresholds h [B, Γ]: hᵢ = (πᵢ - mᵢ)/(1 - mᵢ) with mᵢ = Σₓ min(πᵢ·pᵢ₊₁(x), qᵢ₊₁(x)), for i = 1..Γ; h_γ = π_γ.

    The sum runs over the support of q only: elsewhere the minimum is 0. After the last draft q is 0, so m_γ = 0.

    Args:
        pi: from `block_pi` [B, Γ+1].
        p_s: target probabilities over each position's support [B, Γ+1, K].
        q_s: draft probabilities over it [B, Γ+1, K].
    """
    pi = pi[:, 1:]
    m = torch.minimum(pi[:, :, None] * p_s[:, 1:], q_s[:, 1:]).sum(-1)
    # m = 1 only when π = 1 and p = q: continuing cannot lose anything, and no later i fails.
    return ((pi - m) / (1.0 - m)).masked_fill(m >= 1.0, 1.0)


def residual(p: Tensor, scale: Tensor, ids: Tensor, q: Tensor) -> Tensor:
    """The residual (scale·p - q)₊ [B, V], not normalised; p itself in rows where the residual is 0.

    Args:
        p: target distributions [B, V].
        scale: π_τ in the block rule, 1 in token rejection [B].
        ids: supports, int64 [B, K].
        q: draft probabilities over them [B, K]; all 0 after a full acceptance, where the residual is scale·p.
    """
    left = (scale[:, None] * p).scatter_add_(1, ids, -q).clamp_min_(0.0)
    return torch.where(left.sum(1, keepdim=True) > 0.0, left, p)
