"""The exact output law of one round on table models, by integrating the real decision functions over their uniforms.

Each draft position is kept when its uniform lies below a threshold. For every path of drafts and every pattern of
(below, above) the real rule says what is kept, so the law is a finite sum and its only error is rounding.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from specdec.acceptance import block, block_h, block_pi, rejection, residual
from specdec.draft import SparseProbs
from tests.conformance.tables import Context, contexts

Law = Callable[[Context], Tensor]
"""From a context to a dense distribution, float64 [V]."""
Claim = Callable[[Context], SparseProbs]
"""From a context to the q̂ that the verifier is told."""


@dataclass(frozen=True)
class Window:
    """One row per path of drafts, laid out as `specdec.acceptance` says."""

    p_x: Tensor
    q_x: Tensor
    p_s: Tensor
    q_s: Tensor
    ids: Tensor


class Rule(Protocol):
    """A verification rule seen through its thresholds."""

    def thresholds(self, window: Window) -> Tensor:
        """Below which uniforms a draft passes [B, Γ]."""

    def tau(self, window: Window, u: Tensor) -> Tensor:
        """Drafts kept at these uniforms [B]."""

    def scale(self, window: Window, tau: Tensor) -> Tensor:
        """Of p in the residual [B]."""

    def last(self, p: Tensor, scale: Tensor, ids: Tensor, q: Tensor) -> Tensor:
        """What the token after the kept drafts is drawn from [B, V]."""


class Rejection:
    """Token rejection; its thresholds are found by bisecting the decision itself."""

    def thresholds(self, window: Window) -> Tensor:
        low, high = torch.zeros_like(window.p_x), torch.ones_like(window.p_x)
        for _ in range(60):
            middle = (low + high) / 2
            kept = torch.stack(
                [
                    rejection(*columns)
                    for columns in zip(
                        *(torch.split(part, 1, dim=1) for part in (window.p_x, window.q_x, middle)), strict=True
                    )
                ],
                dim=1,
            )
            low, high = torch.where(kept > 0, middle, low), torch.where(kept > 0, high, middle)
        return low

    def tau(self, window: Window, u: Tensor) -> Tensor:
        return rejection(window.p_x, window.q_x, u)

    def scale(self, window: Window, tau: Tensor) -> Tensor:
        return torch.ones(len(tau), dtype=torch.float64)

    def last(self, p: Tensor, scale: Tensor, ids: Tensor, q: Tensor) -> Tensor:
        return residual(p, scale, ids, q)


class Block(Rejection):
    """Block verification."""

    def thresholds(self, window: Window) -> Tensor:
        return block_h(block_pi(window.p_x, window.q_x), window.p_s, window.q_s)

    def tau(self, window: Window, u: Tensor) -> Tensor:
        return block(self.thresholds(window), u)

    def scale(self, window: Window, tau: Tensor) -> Tensor:
        return block_pi(window.p_x, window.q_x).gather(1, tau[:, None])[:, 0]


@dataclass(frozen=True)
class Outcome:
    """What one round does."""

    law: Tensor
    """Of the first γ + 1 tokens when the rest is drawn from p, float64 [V ** (γ + 1)], in order of `contexts`."""
    accepted: float
    """Expected drafts kept."""


def outcome(rule: Rule, target: Law, drawn: Law, claimed: Claim, gamma: int) -> Outcome:
    """Enumerate one round: drafts come from `drawn`, the verifier believes `claimed`."""
    vocab_size = len(target(()))
    paths = list(contexts(vocab_size, gamma))
    window = _window(paths, target, claimed, vocab_size)
    chances = torch.stack([_chance(path, drawn) for path in paths])
    thresholds = rule.thresholds(window)
    committed: dict[Context, float] = defaultdict(float)
    accepted = 0.0
    for pattern in product((True, False), repeat=gamma):
        below = torch.tensor(pattern)
        weight = chances * torch.where(below, thresholds, 1 - thresholds).prod(1)
        tau = rule.tau(window, torch.where(below, thresholds / 2, (1 + thresholds) / 2))
        accepted += float((weight * tau).sum())
        _commit(committed, rule, window, target, (paths, tau, weight))
    return Outcome(_completed(committed, target, vocab_size, gamma + 1), accepted)


def _commit(
    committed: dict[Context, float],
    rule: Rule,
    window: Window,
    target: Law,
    verdicts: tuple[list[Context], Tensor, Tensor],
) -> None:
    """Add the tokens that each path commits, with their chances."""
    paths, tau, weight = verdicts
    batch = torch.arange(len(paths))
    p = torch.stack([target(path[:kept]) for path, kept in zip(paths, tau.tolist(), strict=True)])
    law = rule.last(p, rule.scale(window, tau), window.ids[batch, tau], window.q_s[batch, tau])
    law = law / law.sum(1, keepdim=True) * weight[:, None]
    for path, kept, row in zip(paths, tau.tolist(), law.tolist(), strict=True):
        for token, chance in enumerate(row):
            committed[(*path[:kept], token)] += chance


def _completed(committed: dict[Context, float], target: Law, vocab_size: int, length: int) -> Tensor:
    """Draw the rest of each committed prefix from the target."""
    law = []
    for sequence in contexts(vocab_size, length):
        chance = 0.0
        for cut in range(1, length + 1):
            rest = _product(float(target(sequence[:at])[sequence[at]]) for at in range(cut, length))
            chance += committed[sequence[:cut]] * rest
        law.append(chance)
    return torch.tensor(law, dtype=torch.float64)


def _window(paths: list[Context], target: Law, claimed: Claim, vocab_size: int) -> Window:
    gamma = len(paths[0])
    shape = (len(paths), gamma + 1, vocab_size)
    ids, p_s, q_s = torch.zeros(shape, dtype=torch.int64), torch.zeros(*shape).double(), torch.zeros(*shape).double()
    p_x, q_x = torch.zeros(shape[:2]).double()[:, 1:], torch.zeros(shape[:2]).double()[:, 1:]
    for b, path in enumerate(paths):
        for step, token in enumerate(path):
            p, q = target(path[:step]), claimed(path[:step])
            share = q.weights.double() / q.weights.sum()
            size = len(q.ids)
            ids[b, step, :size], p_s[b, step, :size], q_s[b, step, :size] = q.ids, p[q.ids], share
            p_x[b, step], q_x[b, step] = p[token], share[q.ids == token].sum()
    return Window(p_x, q_x, p_s, q_s, ids)


def _chance(path: Context, drawn: Law) -> Tensor:
    return torch.stack([drawn(path[:step])[token] for step, token in enumerate(path)]).prod()


def _product(factors: Iterable[float]) -> float:
    result = 1.0
    for factor in factors:
        result *= factor
    return result
