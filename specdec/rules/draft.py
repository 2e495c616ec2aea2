"""Input and output of a verification round: `Draft` and `Verdict`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Mode, Origin
from specdec.sampling.logprobs import TokenLogprobs

MAX_WEIGHT = 65535
"""Largest weight of an id in a q̂: weights are sent as uint16."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseProbs:
    """The q̂ of one position: q̂(ids[i]) = weights[i] / weights.sum(), and 0 for every other id.

    The token was drawn from exactly this distribution. A draft that was not sampled has a point mass: a q̂ of one id.
    """

    ids: Tensor
    """Token ids, int64 [k], ascending."""
    weights: Tensor
    """Weight of each id, int64 [k], in 1..MAX_WEIGHT."""
    uniform: bool = False
    """Whether this is `uniform_probs(k)`, which is sent as the number k alone."""


@lru_cache(maxsize=4)
def uniform_probs(count: int) -> SparseProbs:
    """The uniform distribution over the ids 0..count-1; its tensors are shared and must not be changed."""
    return SparseProbs(torch.arange(count), torch.ones(count, dtype=torch.int64), uniform=True)


class JoinedProbs(NamedTuple):
    """Several q̂, concatenated."""

    sizes: NDArray[np.int64]
    """Number of ids of each q̂ [N]."""
    ids: NDArray[np.int64]
    """Ids of every q̂ [Σk]."""
    weights: NDArray[np.int64]
    """Weights of those ids [Σk]."""


def join_probs(probs: Sequence[SparseProbs]) -> JoinedProbs:
    """Concatenate several q̂."""
    none = np.empty(0, np.int64)
    ids, weights = [row.ids.numpy() for row in probs], [row.weights.numpy() for row in probs]
    sizes = np.array([len(row) for row in ids], np.int64)
    return JoinedProbs(sizes, np.concatenate([none, *ids]), np.concatenate([none, *weights]))


@dataclass(frozen=True, slots=True)
class DraftStep:
    """State of a drafter that chooses γ by entropy (EGAG) at one draft step."""

    entropy: float
    """H_norm of the distribution of the step, in [0, 1]."""
    gamma: int
    """γ computed from the entropies up to this step: the draft ends once it has this many tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """γ proposed tokens. `probs` has one entry for each token, or is empty in a mode that needs no q̂."""

    tokens: tuple[int, ...] = ()
    probs: tuple[SparseProbs, ...] = ()
    steps: tuple[DraftStep | None, ...] = ()
    """One entry for each token, None for a token that no model drafted; empty unless γ is chosen by entropy."""

    @property
    def before(self) -> list[tuple[int, ...]]:
        """The drafted tokens before each row of p [γ + 1]: none before the first row, all before the last."""
        return [self.tokens[:seen] for seen in range(len(self.tokens) + 1)]

    def cut(self, gamma: int) -> "Draft":
        return Draft(self.tokens[:gamma], self.probs[:gamma], self.steps[:gamma])


NO_DRAFT = Draft()


def point_mass(token: int) -> SparseProbs:
    """The q̂ of a token that was not sampled."""
    return SparseProbs(torch.tensor([token]), torch.tensor([MAX_WEIGHT]))


def certain(tokens: Sequence[int], mode: Mode) -> Draft:
    """The draft of tokens that were not sampled."""
    return Draft(tuple(tokens), () if mode is Mode.COUPLED else tuple(map(point_mass, tokens)))


class Verdict(NamedTuple):
    """Result of one round: the accepted drafts and the token that the target adds."""

    tokens: tuple[int, ...]
    """The committed tokens: the accepted drafts and one more. The last one is missing if the target has no distribution
    after the accepted drafts."""
    accepted: int
    """Number of draft tokens kept."""
    drafted: int
    """Length of the draft."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of each token; empty when the request does not ask for them."""
    judged_tokens: tuple[JudgedToken, ...] = ()
    """Evidence for each draft token; empty when the request does not ask for it."""
    path: tuple[int, ...] | None = None
    """The accepted nodes of a tree, from the root down; None for a chain."""
    at_leaf: bool = False
    """Whether the path ends at a leaf of the drafted tree."""
    overlaps: tuple[float, ...] = ()
    """Σ min(p/ℓ, q̂) of each judged draft, the probability with which its position keeps a draft, rounded so that all
    devices agree; empty unless the rule is token rejection."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Index, among the draft's rows of p, of the row of each token."""
        return tuple(range(len(self.tokens))) if self.path is None else (0, *(node + 1 for node in self.path))

    @property
    def judged(self) -> int:
        """Number of drafts that the rule judged: `accepted` if the path ends at a leaf, else `drafted`."""
        return self.accepted if self.at_leaf else self.drafted

    @property
    def origins(self) -> tuple[Origin, ...]:
        if self.drafted == 0:
            return (Origin.PLAIN,) * len(self.tokens)
        last = Origin.BONUS if self.accepted == self.judged else Origin.RECOVERED
        return ((Origin.ACCEPTED,) * self.accepted + (last,))[: len(self.tokens)]
