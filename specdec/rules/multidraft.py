"""Several drafts for one position: recursive rejection, with and without replacement, and agreement.

Shapes: N positions, each with up to K siblings in the order of the draw, which share one q̂ of up to S ids; V is the
vocabulary; all float64. Past a position's own siblings `children` is -1, and past a support q is 0. Each sibling costs
O(S), because outside the support of q̂ p only changes by a factor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from specdec.rules.speculation import Mode

NONE = -1
"""No sibling: padding in `children`; in `Choice.child` it means that all siblings were rejected."""


class Siblings(StrEnum):
    """How the children of a node were drawn. Each method has its own rule, and any other rule is biased."""

    WITH_REPLACEMENT = "with_replacement"
    """Independent draws from q̂."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Draws from q̂ that exclude the tokens drawn before."""
    DETERMINISTIC = "deterministic"
    """Not independent draws: the most likely tokens, a lookup, a prediction, or choices by the coupling noise."""

    @classmethod
    def of(cls, mode: Mode, *, replacement: bool) -> "Siblings":
        """The method of a mode; `replacement` says whether sampled children are drawn with replacement."""
        if mode is Mode.COUPLED:
            return cls.DETERMINISTIC
        return cls.WITH_REPLACEMENT if replacement else cls.WITHOUT_REPLACEMENT


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The result of recursive rejection at each position."""

    child: Tensor
    """Index of the sibling that is kept, int64 [N]; NONE when all were rejected."""
    left: Tensor
    """Distribution of the token if all siblings were rejected [N, V], not normalised."""


def with_replacement(p: Tensor, ids: Tensor, q: Tensor, children: Tensor, u: Tensor) -> Choice:
    """Multi-step speculative sampling of siblings xⱼ ~ q (SpecInfer, arXiv 2305.09781, Algorithm 2).

    p₁ = p; xⱼ is kept iff u·q(xⱼ) < pⱼ(xⱼ), else pⱼ₊₁ = norm((pⱼ - q)₊). The token after K rejections is from p_{K+1}.

    Args:
        p: target distributions [N, V].
        ids: supports, int64 [N, S].
        q: draft probabilities over them [N, S].
        children: drafted tokens, int64 [N, K].
        u: uniforms in [0, 1) [N, K].
    """
    return _recursive(p, ids, q, children, u, lambda q, drawn: q)


def without_replacement(p: Tensor, ids: Tensor, q: Tensor, children: Tensor, u: Tensor) -> Choice:
    """Recursive rejection of siblings xⱼ ~ qⱼ, where q₁ = q and qⱼ₊₁ is qⱼ without xⱼ, renormalised.

    Source: recursive speculative decoding, arXiv 2402.14160, Algorithm 2; Sequoia, arXiv 2402.12374, Algorithm 2.
    Arguments as in `with_replacement`.
    """
    return _recursive(p, ids, q, children, u, _without)


def agreement(drawn: Tensor, children: Tensor) -> Tensor:
    """Index of the child that equals the target's own draw, int64 [N], NONE when none does; exact for any children.

    Args:
        drawn: y ~ p, int64 [N]; it is committed in either case.
        children: proposed tokens, int64 [N, K].
    """
    nobody = torch.ones_like(drawn, dtype=torch.bool)[:, None]
    place = torch.cat([children == drawn[:, None], nobody], dim=1).byte().argmax(1)
    return torch.where(place < children.shape[1], place, NONE)


def _recursive(
    p: Tensor, ids: Tensor, q: Tensor, children: Tensor, u: Tensor, successor: Callable[[Tensor, Tensor], Tensor]
) -> Choice:
    """Recursive rejection, with pⱼ stored as left / mass to avoid division by a number that may be 0."""
    held = q > 0
    beyond = p.masked_fill(torch.zeros_like(p).scatter_add_(1, ids, held.to(p.dtype)) > 0, 0.0)
    left, mass, outside = p.gather(1, ids) * held, torch.ones_like(p[:, 0]), beyond.sum(1)
    child = ids.new_full((len(ids),), NONE)
    for place, token in enumerate(children.unbind(1)):
        drawn = held & (ids == token[:, None])
        judged = (token != NONE) & (child == NONE)
        kept = judged & (u[:, place] * (drawn * q).sum(1) * mass < (drawn * left).sum(1))
        child = torch.where(kept, place, child)
        rest = (left - mass[:, None] * q).clamp_min(0.0)
        left = torch.where((judged & ~kept)[:, None], rest, left)
        mass = torch.where(judged & ~kept, rest.sum(1) + outside, mass)
        q = successor(q, drawn)
    law = beyond.scatter_add_(1, ids, left)
    return Choice(child, torch.where(law.sum(1, keepdim=True) > 0.0, law, p))


def _without(q: Tensor, drawn: Tensor) -> Tensor:
    """q without the drawn ids, renormalised; rows without drawn ids, or with no other ids, do not change."""
    rest = q.masked_fill(drawn, 0.0)
    total = rest.sum(1, keepdim=True)
    return torch.where(drawn.any(1, keepdim=True) & (total > 0.0), rest / total, q)
