"""The two ratio rules: how many drafts are kept, and what the token after them is drawn from.

Shapes: B drafts, Γ the longest of them, K the largest support, V the vocabulary; all float64. Past a draft's own length
p_x = 0 and q_x = 1, past a support q_s = 0: a draft that is not there is never kept and takes nothing from p. Only
`residual` is as wide as V; everything else costs O(K) a position, because q̂ is never made dense.
"""

import torch
from torch import Tensor

from specdec.rules.params import Mode
from specdec.rules.window import Window


def judged(mode: Mode, p: Tensor, mass: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """τ of each draft of a batch, int64 [B], and what its last token is drawn from [B, V], not normalised.

    Nothing in here looks at a number, so it runs on any device without a wait.

    Args:
        mode: rejection or block.
        p: target distributions [R, V].
        mass: their sums, float64 [R].
        window: on the same device.
    """
    rows, q_s = _places(window, len(p)), window.weights.double()
    q_s = q_s / q_s.sum(-1, keepdim=True).clamp_min_(1.0)
    p_x, q_x = _drafted(p, mass, window, rows, q_s)
    scale = torch.ones_like(mass[window.first])
    if mode is Mode.BLOCK:
        pi = block_pi(p_x, q_x)
        p_s = p[rows[:, :, None], window.ids].double() / mass[rows][:, :, None]
        tau = block(block_h(pi, p_s, q_s), window.u)
        scale = pi.gather(1, tau[:, None])[:, 0]
    else:
        tau = rejection(p_x, q_x, window.u, window.lenience)
    batch, last = torch.arange(len(tau), device=p.device), window.first + tau
    law = residual(p[last].double() / mass[last, None], scale, window.ids[batch, tau], q_s[batch, tau])
    return tau, law


def _places(window: Window, rows: int) -> Tensor:
    """Row of p of each position of the drafts, int64 [B, Γ+1]; any row past a draft's own."""
    steps = torch.arange(window.ids.shape[1], device=window.ids.device)
    return (window.first[:, None] + steps).clamp_max_(rows - 1)


def _drafted(p: Tensor, mass: Tensor, window: Window, rows: Tensor, q_s: Tensor) -> tuple[Tensor, Tensor]:
    """p_x and q_x [B, Γ]: 0 and 1 past a draft's own length."""
    rows = rows[:, :-1]
    beyond = torch.arange(rows.shape[1], device=p.device) >= window.lengths[:, None]
    p_x = p[rows, window.tokens].double() / mass[rows]
    q_x = ((window.ids[:, :-1] == window.tokens[:, :, None]) * q_s[:, :-1]).sum(-1)
    return p_x.masked_fill_(beyond, 0.0), q_x.masked_fill_(beyond, 1.0)


def rejection(p_x: Tensor, q_x: Tensor, u: Tensor, lenience: Tensor | None = None) -> Tensor:
    """τ, int64 [B]: drafts kept by token rejection (Leviathan et al., arXiv 2211.17192, Algorithm 1).

    Draft x is kept iff u·q(x) < p(x): with probability min(1, p/q), never when p(x) = 0, and without a division.
    Lenience ℓ keeps it iff u·ℓ·q(x) < p(x) (ibid., §A.5): no longer exact, but with the same residual no token gets
    more than p(x)/ℓ.

    Args:
        p_x: target probability of each draft token [B, Γ].
        q_x: draft probability of each draft token [B, Γ].
        u: uniforms in [0, 1) [B, Γ].
        lenience: ℓ in (0, 1] of each draft [B]; None is 1, exact.
    """
    bar = u * q_x if lenience is None else u * q_x * lenience[:, None]
    return (bar < p_x).cumprod(1).sum(1)


def block(h: Tensor, eta: Tensor) -> Tensor:
    """τ, int64 [B]: drafts kept by block verification (Sun et al., arXiv 2403.10444, Algorithm 2).

    It is the LARGEST i with ηᵢ < hᵢ, whatever the smaller ones say; stopping at the first failure is biased.

    Args:
        h: from `block_h` [B, Γ].
        eta: uniforms in [0, 1) [B, Γ].
    """
    order = torch.arange(1, h.shape[1] + 1, device=h.device)
    none = order.new_zeros(len(h), 1)
    return torch.cat([none, (eta < h) * order], dim=1).amax(1)


def block_pi(p_x: Tensor, q_x: Tensor) -> Tensor:
    """π [B, Γ+1]: π₀ = 1 and πᵢ = min(1, πᵢ₋₁·pᵢ(xᵢ)/qᵢ(xᵢ)). Takes p_x and q_x [B, Γ], q_x > 0."""
    pi = [torch.ones_like(p_x.sum(1))]
    for ratio in (p_x / q_x).unbind(1):
        pi.append((pi[-1] * ratio).clamp_max(1.0))
    return torch.stack(pi, dim=1)


def block_h(pi: Tensor, p_s: Tensor, q_s: Tensor) -> Tensor:
    """h [B, Γ]: hᵢ = (πᵢ - mᵢ)/(1 - mᵢ) with mᵢ = Σₓ min(πᵢ·pᵢ₊₁(x), qᵢ₊₁(x)), for i = 1..Γ; h_γ = π_γ.

    The sum runs over the support of q only: elsewhere the minimum is 0. After the last draft q is 0, so m_γ = 0.

    Args:
        pi: from `block_pi` [B, Γ+1].
        p_s: target probabilities over each position's support [B, Γ+1, K].
        q_s: draft probabilities over it [B, Γ+1, K].
    """
    pi = pi[:, 1:]
    m = torch.minimum(pi[:, :, None] * p_s[:, 1:], q_s[:, 1:]).sum(-1)
    # m = 1 only when π = 1 and p = q: nothing can be lost by going on, and no later i fails.
    return ((pi - m) / (1.0 - m)).masked_fill(m >= 1.0, 1.0)


def residual(p: Tensor, scale: Tensor, ids: Tensor, q: Tensor) -> Tensor:
    """(scale·p - q)₊ [B, V], not normalised; p itself where nothing is left of it.

    Args:
        p: target distributions [B, V].
        scale: π_τ of the block rule, 1 for token rejection [B].
        ids: supports, int64 [B, K].
        q: draft probabilities over them [B, K]; all 0 after a full acceptance, where the residual is p up to scale.
    """
    left = (scale[:, None] * p).scatter_add_(1, ids, -q).clamp_min_(0.0)
    return torch.where(left.sum(1, keepdim=True) > 0.0, left, p)
