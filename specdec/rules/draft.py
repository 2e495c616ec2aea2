"""What a round is made of: a Draft goes in, a Verdict comes out."""

from collections.abc import Sequence
from dataclasses import dataclass
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

    It is exactly the distribution the token was drawn from. A q̂ of one id is a point mass, as of a draft that was not
    sampled.
    """

    ids: Tensor
    """Token ids, int64 [k], ascending."""
    weights: Tensor
    """Weight of each id, int64 [k], in 1..MAX_WEIGHT."""


class JoinedProbs(NamedTuple):
    """Several q̂, one after the other."""

    sizes: NDArray[np.int64]
    """Number of ids of each [N]."""
    ids: NDArray[np.int64]
    """Ids of all [Σk]."""
    weights: NDArray[np.int64]
    """Weights of those ids [Σk]."""


def join_probs(probs: Sequence[SparseProbs]) -> JoinedProbs:
    """Every q̂ behind the one before."""
    none = np.empty(0, np.int64)
    ids, weights = [row.ids.numpy() for row in probs], [row.weights.numpy() for row in probs]
    sizes = np.array([len(row) for row in ids], np.int64)
    return JoinedProbs(sizes, np.concatenate([none, *ids]), np.concatenate([none, *weights]))


@dataclass(frozen=True, slots=True)
class DraftStep:
    """What a drafter that chooses γ by entropy (EGAG) knew at one draft step."""

    entropy: float
    """H_norm of the distribution of the step, in [0, 1]."""
    gamma: int
    """γ by the entropies up to this step: a draft ends once it has so many tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """γ proposed tokens; `probs` has one entry for each token, or is empty in a mode that needs no q̂."""

    tokens: tuple[int, ...] = ()
    probs: tuple[SparseProbs, ...] = ()
    steps: tuple[DraftStep | None, ...] = ()
    """One entry for each token, None for one that no model drafted; empty unless γ is chosen by entropy."""

    @property
    def before(self) -> list[tuple[int, ...]]:
        """The drafted tokens before each row of p: those before each draft, and all of them [γ + 1]."""
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one round commits: the accepted drafts and the one token the target adds."""

    tokens: tuple[int, ...]
    """The committed tokens: the accepted drafts and one more, which is missing where the target has no distribution
    behind accepted drafts."""
    accepted: int
    """How many draft tokens were kept."""
    drafted: int
    """Length of the draft."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of each token; empty when the request does not ask for them."""
    judged_tokens: tuple[JudgedToken, ...] = ()
    """The numbers of each draft token; empty when the request does not ask for them."""
    path: tuple[int, ...] | None = None
    """The accepted nodes of a tree, from the root down; None for a chain."""
    at_leaf: bool = False
    """Whether the path ends where no more was drafted."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Which of the draft's rows of p each token comes from."""
        return tuple(range(len(self.tokens))) if self.path is None else (0, *(node + 1 for node in self.path))

    @property
    def judged(self) -> int:
        """Drafts that the rule looked at and that decided something: those accepted, and more if one was rejected."""
        return self.accepted if self.at_leaf else self.drafted

    @property
    def origins(self) -> tuple[Origin, ...]:
        if self.drafted == 0:
            return (Origin.PLAIN,) * len(self.tokens)
        last = Origin.BONUS if self.accepted == self.judged else Origin.RECOVERED
        return ((Origin.ACCEPTED,) * self.accepted + (last,))[: len(self.tokens)]
