"""Random numbers that are a pure function of (seed, position, purpose): Philox4x32-10, integers only, no state.

Nothing is stored or advanced, so a retry, another batch-mate or another device gets the same bits.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

Words = tuple[Tensor, Tensor, Tensor, Tensor]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


class Lane(IntEnum):
    """What a number is for: two purposes never share one, or the draws would depend on each other."""

    DRAFT = 0
    """A draft token, from q̂."""
    ACCEPT = 1
    """Whether a draft token is kept."""
    RESIDUAL = 2
    """The recovered token."""
    BONUS = 3
    """A token from p alone: bonus and plain."""
    COUPLING = 4
    """The noise that drafter and target share in coupled mode."""


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox4x32-10: four random words for each counter and key.

    Args:
        counter: four int64 tensors of one shape, or broadcastable, each holding 32-bit words.
        key: two such tensors.
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(_ROUNDS):
        # The 64-bit products wrap in int64; masking after the arithmetic shift leaves the unsigned high word.
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = ((second >> 32) & _WORD) ^ b ^ low, second & _WORD
        c, d = ((first >> 32) & _WORD) ^ d ^ high, first & _WORD
        low, high = (low + _WEYL[0]) & _WORD, (high + _WEYL[1]) & _WORD
    return a, b, c, d


def uniform(
    seeds: Sequence[int],
    positions: Sequence[int],
    lane: Lane,
    device: torch.device | str = "cpu",
    starts: Sequence[int] | None = None,
    indices: Sequence[int] | None = None,
) -> Tensor:
    """float64 [N] in [0, 1), 53 random bits each.

    Args:
        seeds: 64-bit seeds.
        positions: absolute positions in their sequences, below 2^32.
        lane: purpose.
        device: where the result lies; the bits are the same everywhere.
        starts: where the draft or round began, for rules that look at a position more than once; 0 when not given.
        indices: which of several numbers of one position, below 2^32; 0 when not given.
    """
    key, position, start = _coordinates(seeds, positions, starts, device)
    index = torch.tensor(indices or [0] * len(seeds), dtype=torch.int64, device=device)
    words = philox((index, position, start, torch.full_like(position, lane)), key)
    return ((words[0] << 21) | (words[1] >> 11)).double() * 2.0**-53


def exponential(seeds: Sequence[int], positions: Sequence[int], rows: Tensor, ids: Tensor) -> Tensor:
    """float64 [M], e = -ln u(seed, position, id) with u in (0, 1): the shared noise of coupled mode.

    Args:
        seeds: 64-bit seeds [N].
        positions: absolute positions [N].
        rows: int64 [M], which seed and position each element uses.
        ids: int64 [M], token ids.
    """
    (low, high), position, start = _coordinates(seeds, positions, None, ids.device)
    lane = torch.full_like(start, Lane.COUPLING)
    words = philox((ids, position[rows], start[rows], lane[rows]), (low[rows], high[rows]))
    # 52 bits and a half: u is exact and can be neither 0 nor 1.
    return -torch.log((((words[0] << 20) | (words[1] >> 12)).double() + 0.5) * 2.0**-52)


def _coordinates(
    seeds: Sequence[int], positions: Sequence[int], starts: Sequence[int] | None, device: torch.device | str
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Seeds as key words, positions and starts as counter words, all int64 [N]."""
    words = [
        [seed & _WORD for seed in seeds],
        [seed >> 32 & _WORD for seed in seeds],
        list(positions),
        list(starts) if starts is not None else [0] * len(seeds),
    ]
    low, high, position, start = torch.tensor(words, dtype=torch.int64, device=device).unbind()
    return (low, high), position, start
