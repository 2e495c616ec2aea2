"""The drafts of a batch as padded tensors, with every number their verdicts need: made on the host, moved in one piece.

Shapes: B drafts, Γ the longest of them, K the largest support.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec.rules.draft import Draft
from specdec.rules.layout import laid_out
from specdec.rules.params import Mode
from specdec.rules.rng import coordinates


@dataclass(frozen=True, slots=True)
class Batch:
    """Drafts that one rule judges, as `specdec.rules.verification` takes them."""

    mode: Mode
    drafts: Sequence[Draft]
    seeds: Sequence[int]
    positions: Sequence[int]
    lenience: Sequence[float] | None
    first: Sequence[int]
    """Row of p of each draft's first position."""

    def part(self, mode: Mode, members: Sequence[int]) -> "Batch":
        """Some of the drafts, for another rule."""
        drafts = [self.drafts[b] for b in members]
        seeds, positions, first = ([each[b] for b in members] for each in (self.seeds, self.positions, self.first))
        lenience = None if self.lenience is None else [self.lenience[b] for b in members]
        return Batch(mode, drafts, seeds, positions, lenience, first)

    def places(self, extra: int = 0) -> list[tuple[int, int]]:
        """(draft, step) of every drafted position and of `extra` behind each draft's last, in order."""
        return [(b, step) for b, draft in enumerate(self.drafts) for step in range(len(draft.tokens) + extra)]

    def rows(self) -> list[int]:
        """Rows of p that are the drafts', γ + 1 each."""
        return [self.first[b] + step for b, step in self.places(extra=1)]

    def keys(self, places: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """The seed and the absolute position of each."""
        return [self.seeds[b] for b, _ in places], [self.positions[b] + step for b, step in places]


class Window(NamedTuple):
    """What the ratio rules read beside p; past a draft's own length and past a support everything is 0."""

    first: Tensor
    """Row of p of each draft's first position, int64 [B]."""
    lengths: Tensor
    """γ of each, int64 [B]."""
    tokens: Tensor
    """int64 [B, Γ]"""
    ids: Tensor
    """Supports, int64 [B, Γ+1, K]; there is none behind the last draft."""
    weights: Tensor
    """Of q̂ over them, int64 [B, Γ+1, K]."""
    u: Tensor
    """Uniforms of the drafted positions, float64 [B, Γ]."""
    lenience: Tensor
    """ℓ, float64 [B]."""
    last: Tensor
    """For the last token, the uniform it has behind 0..γ drafts, float64 [B, Γ+1]; empty if drawn when τ is known."""


class Races(NamedTuple):
    """What coupled mode reads beside p."""

    rows: Tensor
    """Rows of p of the batch, int64 [R]."""
    first: Tensor
    """Which of them is each draft's first, int64 [B]."""
    lengths: Tensor
    tokens: Tensor
    """As in Window."""
    words: Tensor
    """Coordinates of each row's noise, int64 [4, R]."""


def window(batch: Batch, u: Tensor, last: Tensor | None = None) -> Window:
    """Lay out the drafts of a ratio mode.

    Args:
        batch: with a drafted token at least, or with `last`.
        u: uniforms of the drafted positions, one draft's after the other's, float64 [Σγ].
        last: for the last token of each draft, the uniform it has behind 0..γ drafts, float64 [Σ(γ+1)].
    """
    lengths = torch.tensor([len(draft.tokens) for draft in batch.drafts])
    gamma = int(lengths.max())
    ids, weights = _supports(batch.drafts, gamma)
    return Window(
        first=torch.tensor(batch.first),
        lengths=lengths,
        tokens=_tokens(batch.drafts, gamma),
        ids=ids,
        weights=weights,
        u=laid_out(u, lengths, gamma, fill=0.0),
        lenience=torch.tensor(batch.lenience or [1.0] * len(batch.drafts), dtype=torch.float64),
        last=u.new_zeros(0) if last is None else laid_out(last, lengths + 1, gamma + 1, fill=0.0),
    )


def races(batch: Batch) -> Races:
    """Lay out the drafts of mode coupled or off."""
    places = batch.places(extra=1)
    lengths = torch.tensor([len(draft.tokens) for draft in batch.drafts])
    return Races(
        rows=torch.tensor(batch.rows()),
        first=(lengths + 1).cumsum(0) - lengths - 1,
        lengths=lengths,
        tokens=_tokens(batch.drafts, int(lengths.max())),
        words=torch.from_numpy(coordinates(*batch.keys(places))),
    )


def _tokens(drafts: Sequence[Draft], gamma: int) -> Tensor:
    rows = [[*draft.tokens, *[0] * (gamma - len(draft.tokens))] for draft in drafts]
    return torch.tensor(rows, dtype=torch.int64)


def _supports(drafts: Sequence[Draft], gamma: int) -> tuple[Tensor, Tensor]:
    """Ids and weights [B, Γ+1, K]."""
    laws = [law for draft in drafts for law in draft.probs]
    sizes = np.zeros((len(drafts), gamma + 1), np.int64)
    for b, draft in enumerate(drafts):
        sizes[b, : len(draft.probs)] = [len(law.ids) for law in draft.probs]
    held = torch.from_numpy(np.arange(sizes.max()) < sizes[..., None])
    ids, weights = (torch.zeros(held.shape, dtype=torch.int64) for _ in range(2))
    if laws:
        ids[held] = torch.cat([law.ids for law in laws])
        weights[held] = torch.cat([law.weights for law in laws])
    return ids, weights
