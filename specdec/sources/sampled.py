"""Drafts drawn from the counts of a source, with those counts as their q̂, instead of its most frequent guess."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec.errors import NoDistribution
from specdec.rules.coupling import choose
from specdec.rules.draft import MAX_WEIGHT, Draft, SparseProbs
from specdec.rules.proposal import draw
from specdec.rules.rng import Lane, uniform
from specdec.rules.speculation import Mode
from specdec.sampling.among import among
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.sources.source import CountedSource, DraftSource

IN_VERIFIER, IN_DRAFTER = 2**16, 2**16 + 1
"""Indices of the random numbers of sources in a verifier and in a drafter, beyond those of the nodes of trees."""
_SUPPORT = 64
"""Most ids of a q̂."""


@dataclass(frozen=True, slots=True)
class CountSampling:
    """How drafts of one session are drawn from counts.

    The numbers are keyed by the committed length at which a chain began, and by an index of their own. A later chain
    may reach the same positions after a choice that depended on the length of this one, which its draws decide, and a
    language model may draft for the same positions. Neither may share a number with this chain.
    """

    params: SamplingParams
    """Parameters of the request. Penalties and other fields that depend on the output do not apply to q̂."""
    mode: Mode
    index: int
    """Index of the random numbers."""

    @classmethod
    def of(cls, params: SamplingParams, mode: Mode, index: int) -> "CountSampling | None":
        """Return the sampling of a session; None at temperature 0 and in mode off, where no draft is drawn."""
        if params.temperature == 0.0 or mode is Mode.OFF:
            return None
        free = replace(
            params, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, min_tokens=0,
            end_token_ids=(), bad_words=(), grammar=None,
        )  # fmt: skip
        return cls(free, mode, index)

    def draft(self, source: CountedSource, drafts: Sequence[int], most: int, position: int, start: int) -> Draft:
        """Draw up to `most` tokens, each from the counts after the ones before it.

        Args:
            source: the counts.
            drafts: drafts before the first of these tokens.
            position: absolute position of that token.
            start: committed length at which the chain began.
        """
        tokens, laws = list[int](), list[SparseProbs]()
        while len(tokens) < most:
            counts = source.followers((*drafts, *tokens))
            drawn = None if counts is None else self._drawn(counts, position + len(tokens), start)
            if drawn is None:
                break
            tokens.append(drawn[0])
            laws += [] if drawn[1] is None else [drawn[1]]
        return Draft(tuple(tokens), tuple(laws))

    def _drawn(self, counts: Mapping[int, int], position: int, start: int) -> tuple[int, SparseProbs | None] | None:
        """Draw a token, and return its q̂ unless the mode sends none; None if no counted token may be drawn."""
        ids, order = torch.tensor(list(counts)).sort()
        mass = torch.tensor(list(counts.values()), dtype=torch.float32)[order]
        try:
            params, _ = among(ids, self.params, History())
            q = probabilities(mass.log()[None], [params], [History()])
        except NoDistribution:
            return None
        if not bool(q.isfinite().all()):
            return None
        if self.mode is Mode.COUPLED:
            return int(choose(q, ids[None], [self.params.seed], [position])), None
        law = _quantised(ids, q[0])
        u = uniform([self.params.seed], [position], Lane.DRAFT, starts=[start], indices=[self.index])
        return int(draw(law.ids[None], law.weights[None], u)), law


def _quantised(ids: Tensor, q: Tensor) -> SparseProbs:
    """Return the q̂ of the likeliest ids of q [K]; `ids` [K] are ascending."""
    best = q.topk(min(_SUPPORT, len(q))).indices.sort().values
    weights = (q[best].double() / q.max().double() * MAX_WEIGHT).round().long()
    kept = weights > 0
    return SparseProbs(ids[best][kept], weights[kept])


def drafted(
    source: DraftSource, sampling: CountSampling | None, drafts: Sequence[int], most: int, position: int, start: int
) -> Draft | None:
    """Return a draft drawn from the source's counts, or None if the source has none or nothing is to be drawn."""
    if sampling is None or not isinstance(source, CountedSource):
        return None
    return sampling.draft(source, drafts, most, position, start)
