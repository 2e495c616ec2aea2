"""Random numbers that are a pure function of (seed, position, purpose): Philox4x32-10, integers only, no state.

Nothing is stored or advanced, so a retry, another batch-mate or another device gets the same bits.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]
Word = TypeVar("Word", Tensor, Integers)

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


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Word, Word, Word, Word]:
    """Philox4x32-10: four random words for each counter and key.

    Args:
        counter: four int64 tensors or arrays of one shape, or broadcastable, each holding 32-bit words.
        key: two such tensors or arrays.
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

    A few numbers are made on the host, where an operation on a handful costs least, and copied in one piece.

    Args:
        seeds: 64-bit seeds.
        positions: absolute positions in their sequences, below 2^32.
        lane: purpose.
        device: where the result lies; the bits are the same everywhere.
        starts: where the draft or round began, for rules that look at a position more than once; 0 when not given.
        indices: which of several numbers of one position, below 2^32; 0 when not given.
    """
    low, high, position, start = coordinates(seeds, positions, starts)
    index, purpose = (np.array(word, dtype=np.int64) for word in (indices or [0], [lane]))
    first, second, _, _ = philox((index, position, start, purpose), (low, high))
    return torch.from_numpy(((first << 21) | (second >> 11)) * 2.0**-53).to(device)


def final_uniform(seeds: Sequence[int], positions: Sequence[int], recovered: Sequence[bool]) -> Tensor:
    """For the last token of each round, float64 [N] in [0, 1): recovered ones and those from p alone never share."""
    u = torch.empty(len(seeds), dtype=torch.float64)
    for lane, wanted in ((Lane.RESIDUAL, True), (Lane.BONUS, False)):
        rows = [row for row, drawn in enumerate(recovered) if drawn is wanted]
        if rows:
            u[rows] = uniform([seeds[row] for row in rows], [positions[row] for row in rows], lane)
    return u


def exponential(seeds: Sequence[int], positions: Sequence[int], rows: Tensor, ids: Tensor) -> Tensor:
    """float64 [M], e = -ln u(seed, position, id) with u in (0, 1): the shared noise of coupled mode, on the host.

    Args:
        seeds: 64-bit seeds [N].
        positions: absolute positions [N].
        rows: int64 [M], which seed and position each element uses.
        ids: int64 [M], token ids.
    """
    words = coordinates(seeds, positions)[:, rows.numpy()]
    # NumPy's arithmetic is faster than PyTorch's on the host, at any size.
    return _waiting(torch.from_numpy(_race(words, ids.numpy())))


def exponential_there(words: Tensor, ids: Tensor) -> Tensor:
    """The same on any device, float64 [N, K]; `specdec.rules.noise_kernel` does without so many operations.

    Args:
        words: `coordinates` of each row, int64 [4, N].
        ids: int64 [N, K].
    """
    return _waiting(_race(words[:, :, None], ids))


def _waiting(bits: Tensor) -> Tensor:
    # 52 bits and a half: u is exact and can be neither 0 nor 1.
    return -torch.log((bits.double() + 0.5) * 2.0**-52)


def _race(words: Word, ids: Word) -> Word:
    """The 52 bits of each runner, in the shape of `ids`."""
    low, high, position, start = words
    first, second, _, _ = philox((ids, position, start, start + Lane.COUPLING), (low, high))
    bits: Word = (first << 20) | (second >> 12)
    return bits


def coordinates(seeds: Sequence[int], positions: Sequence[int], starts: Sequence[int] | None = None) -> Integers:
    """Seeds as two key words, positions and starts as counter words: int64 [4, N]."""
    words = (
        [seed & _WORD for seed in seeds],
        [seed >> 32 & _WORD for seed in seeds],
        positions,
        [0] * len(seeds) if starts is None else starts,
    )
    return np.array(words, dtype=np.int64)
