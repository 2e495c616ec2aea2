"""What a round is made of: a Draft goes in, a Verdict comes out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.rules.judged import JudgedToken
from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import Mode, Origin

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


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """γ proposed tokens; `probs` has one entry for each token, or is empty in a mode that needs no q̂."""

    tokens: tuple[int, ...] = ()
    probs: tuple[SparseProbs, ...] = ()

    def cut(self, gamma: int) -> "Draft":
        return Draft(self.tokens[:gamma], self.probs[:gamma])


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
    judged: tuple[JudgedToken, ...] = ()
    """The numbers of each draft token; empty when the request does not ask for them."""

    @property
    def origins(self) -> tuple[Origin, ...]:
        if self.drafted == 0:
            return (Origin.PLAIN,) * len(self.tokens)
        last = Origin.BONUS if self.accepted == self.drafted else Origin.RECOVERED
        return ((Origin.ACCEPTED,) * self.accepted + (last,))[: len(self.tokens)]
