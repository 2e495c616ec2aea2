"""The two nouns of a round: a Draft goes in, a Verdict comes out."""

from dataclasses import dataclass

from torch import Tensor

from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import Origin

MAX_WEIGHT = 65535
"""Largest weight of an id in a q̂: weights are sent as uint16."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseProbs:
    """One position's q̂: q̂(ids[i]) = weights[i] / weights.sum(), zero elsewhere.

    It is the distribution the token was drawn from, to the bit. One id is a point mass: a draft that was not sampled.
    """

    ids: Tensor
    """int64 [k], ascending."""
    weights: Tensor
    """int64 [k], each in 1..MAX_WEIGHT."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """γ proposed tokens; `probs` has one entry per token, or none in a mode that needs no q."""

    tokens: tuple[int, ...] = ()
    probs: tuple[SparseProbs, ...] = ()

    def cut(self, gamma: int) -> "Draft":
        """The first `gamma` tokens."""
        return Draft(self.tokens[:gamma], self.probs[:gamma])


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one round commits: the accepted drafts and the one token the target adds."""

    tokens: tuple[int, ...]
    """accepted + 1 tokens."""
    accepted: int
    """How many of the draft were kept."""
    drafted: int
    """Length of the draft."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each token; empty when nobody asked."""

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The origin of each token."""
        if self.drafted == 0:
            return (Origin.PLAIN,) * len(self.tokens)
        last = Origin.BONUS if self.accepted == self.drafted else Origin.RECOVERED
        return (Origin.ACCEPTED,) * self.accepted + (last,)
