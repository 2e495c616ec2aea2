"""The drafts of a batch as padded tensors, with all inputs of their verdicts: built on the host, copied once.

Shapes: B drafts, Γ the length of the longest, K the size of the largest support, R rows of p.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.rules.draft import Draft, JoinedProbs, SparseProbs, join_probs
from specdec.rules.rng import Integers, coordinates, rest_noise
from specdec.rules.speculation import Mode
from specdec.sampling.transfer import to_device

NO_PROBS = SparseProbs(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
"""The q̂ of a position that has no draft."""


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Drafts judged by one rule; the fields are the arguments of `specdec.rules.verification.verify`."""

    mode: Mode
    drafts: Sequence[Draft]
    seeds: Sequence[int]
    positions: Sequence[int]
    lenience: Sequence[float] | None
    first: Sequence[int]
    """Row of p of each draft's first position [B]."""

    def part(self, mode: Mode, members: Sequence[int]) -> "DraftBatch":
        """The drafts at the indices `members`, as a batch of mode `mode`."""
        drafts = [self.drafts[b] for b in members]
        seeds, positions, first = ([each[b] for b in members] for each in (self.seeds, self.positions, self.first))
        lenience = None if self.lenience is None else [self.lenience[b] for b in members]
        return DraftBatch(mode, drafts, seeds, positions, lenience, first)

    def steps(self, extra: int = 0) -> list[tuple[int, int]]:
        """(index of the draft, step) of every drafted position and of `extra` positions after each draft, in order."""
        return [(b, step) for b, draft in enumerate(self.drafts) for step in range(len(draft.tokens) + extra)]

    def rows(self) -> list[int]:
        """The rows of p that belong to the drafts, γ + 1 of each."""
        return [self.first[b] + step for b, step in self.steps(extra=1)]

    def keys(self, steps: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """The seed and the absolute position of each step."""
        return [self.seeds[b] for b, _ in steps], [self.positions[b] + step for b, step in steps]


class FlatDrafts(NamedTuple):
    """Inputs of the ratio rules in addition to p, one draft after the other."""

    first: Tensor
    """Row of p of each draft's first position, int64 [B]."""
    lengths: Tensor
    """Length γ of each draft, int64 [B]."""
    tokens: Tensor
    """Draft tokens, int64 [Σγ]."""
    sizes: Tensor
    """Number of ids of the q̂ of each token, int64 [Σγ]."""
    ids: Tensor
    """Ids of each q̂, int64 [Σk]."""
    weights: Tensor
    """Weights of those ids, int64 [Σk]."""
    u: Tensor
    """Uniforms of the drafted positions, float64 [Σγ]."""
    lenience: Tensor
    """ℓ of each draft, float64 [B]."""
    last: Tensor
    """The uniform of the last token for 0..γ kept drafts, float64 [Σ(γ+1)]."""


class PaddedDrafts(NamedTuple):
    """Inputs of the ratio rules in addition to p, padded with 0 past a draft's own length and past a support."""

    first: Tensor
    """Row of p of each draft's first position, int64 [B]."""
    lengths: Tensor
    """Length γ of each draft, int64 [B]."""
    tokens: Tensor
    """Draft tokens, int64 [B, Γ]."""
    ids: Tensor
    """Ids of each q̂, int64 [B, Γ+1, K]; the position after the last draft token has none."""
    weights: Tensor
    """Weights of those ids, int64 [B, Γ+1, K]."""
    u: Tensor
    """Uniforms of the drafted positions, float64 [B, Γ]."""
    lenience: Tensor
    """ℓ of each draft, float64 [B]."""
    last: Tensor
    """The uniform of the last token for each number of kept drafts, float64 [B, Γ+1]."""


class PaddedRaces(NamedTuple):
    """Inputs of the coupled rule in addition to p."""

    rows: Tensor
    """Rows of p that belong to the batch, int64 [R]."""
    first: Tensor
    """Index, among those rows, of each draft's first, int64 [B]."""
    lengths: Tensor
    """Length γ of each draft, int64 [B]."""
    tokens: Tensor
    """Draft tokens, int64 [B, Γ]; 0 past a draft's own length."""
    words: Tensor
    """Coordinates of each row's noise, int64 [4, R]."""
    rest_noise: Tensor
    """Noise that the unlikely tokens of each row share, float64 [R]."""
    rest_u: Tensor
    """Uniform that chooses one of the unlikely tokens, float64 [R]."""


def flatten_drafts(batch: DraftBatch, u: Tensor, last: Tensor, laws: JoinedProbs | None = None) -> FlatDrafts:
    """Lay out the drafts of a ratio mode without padding.

    Args:
        batch: the drafts.
        u, last: as in `FlatDrafts`.
        laws: every q̂, joined; None joins them here.
    """
    laws = join_probs([law for draft in batch.drafts for law in draft.probs]) if laws is None else laws
    sizes, ids, weights = map(torch.from_numpy, laws)
    return FlatDrafts(
        first=_integers(batch.first),
        lengths=torch.from_numpy(_lengths(batch)),
        tokens=_integers([token for draft in batch.drafts for token in draft.tokens]),
        sizes=sizes,
        ids=ids,
        weights=weights,
        u=u,
        lenience=torch.from_numpy(np.array(batch.lenience or [1.0] * len(batch.drafts), np.float64)),
        last=last,
    )


def pad_drafts(flat: FlatDrafts) -> PaddedDrafts:
    """Convert flat drafts to padded drafts."""
    lengths, sizes = flat.lengths.numpy(), flat.sizes.numpy()
    gamma, width = int(lengths.max()), int(sizes.max(initial=1))
    drafted = torch.arange(gamma + 1) < flat.lengths[:, None]
    ids, weights = torch.zeros(2, len(lengths), gamma + 1, width, dtype=torch.int64)
    ids[drafted], weights[drafted] = (_pad(each.numpy(), sizes, width) for each in (flat.ids, flat.weights))
    return PaddedDrafts(
        first=flat.first,
        lengths=flat.lengths,
        tokens=_pad(flat.tokens.numpy(), lengths, gamma),
        ids=ids,
        weights=weights,
        u=_pad(flat.u.numpy(), lengths, gamma),
        lenience=flat.lenience,
        last=_pad(flat.last.numpy(), lengths + 1, gamma + 1),
    )


def pad_races(batch: DraftBatch) -> PaddedRaces:
    """Lay out the drafts of mode coupled or off."""
    lengths = _lengths(batch)
    words = coordinates(*batch.keys(batch.steps(extra=1)))
    noise, u = rest_noise(words)
    return PaddedRaces(
        rows=torch.tensor(batch.rows()),
        first=torch.from_numpy((lengths + 1).cumsum() - lengths - 1),
        lengths=torch.from_numpy(lengths),
        tokens=_pad_tokens(batch.drafts, int(lengths.max())),
        words=words,
        rest_noise=noise,
        rest_u=u,
    )


def supports(laws: Sequence[SparseProbs], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids, int64 [D, K], and probabilities, float64 [D, K], of D ≥ 1 supports; 0 past the end of each."""
    ids, weights = to_device(device, *_pad_supports(laws))
    q = weights.double()
    return ids, q / q.sum(-1, keepdim=True).clamp_min_(1.0)


def _lengths(batch: DraftBatch) -> Integers:
    return np.array([len(draft.tokens) for draft in batch.drafts], np.int64)


def _integers(numbers: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(numbers, np.int64))


def _pad_supports(laws: Sequence[SparseProbs]) -> tuple[Tensor, Tensor]:
    """Ids and weights of D supports, int64 [D, K]."""
    sizes, ids, weights = join_probs(laws)
    width = int(sizes.max())
    return _pad(ids, sizes, width), _pad(weights, sizes, width)


def _pad_tokens(drafts: Sequence[Draft], gamma: int) -> Tensor:
    rows = [[*draft.tokens, *[0] * (gamma - len(draft.tokens))] for draft in drafts]
    return torch.tensor(rows, dtype=torch.int64)


def _pad(flat: NDArray[Any], lengths: Integers, width: int) -> Tensor:
    """Pad concatenated rows [Σ lengths] with 0 to rows of one width [len(lengths), width]."""
    rows = np.zeros((len(lengths), width), flat.dtype)
    rows[np.arange(width) < lengths[:, None]] = flat
    return torch.from_numpy(rows)
