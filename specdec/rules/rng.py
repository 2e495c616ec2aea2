"""Random numbers that are a pure function of (seed, position, purpose): Philox4x32-10, integers only, no state.

No state is stored or advanced, so a retry, another batch or another device gets the same bits.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import sys
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]
Words = NDArray[np.uint32]

SEED_VERSION = 2
"""Version of the mapping from a seed to tokens: builds of one version give the same tokens. Part of a model's
fingerprint."""

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_STEPS = tuple(np.uint32(step) for step in _WEYL)
_LOW = 0 if sys.byteorder == "little" else 1
"""Index of the low word of a product in memory."""


class Lane(IntEnum):
    """Purpose of a random number. Two purposes never share a number, or their draws would depend on each other."""

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
    COUPLING_REST = 5
    """Noise that the target's unlikely tokens share in coupled mode, where they race as one."""


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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


def _philox_on_host(counter: Sequence[Words], key: Sequence[Words]) -> Sequence[Words]:
    """`philox` on uint32 arrays, whose sums wrap and whose products split into words without an operation."""
    a, b, c, d = counter
    low, high = key
    for _ in range(_ROUNDS):
        first, second = _halves(a, _MULTIPLIERS[0]), _halves(c, _MULTIPLIERS[1])
        a, b = second[1] ^ b ^ low, second[0]
        c, d = first[1] ^ d ^ high, first[0]
        low, high = low + _STEPS[0], high + _STEPS[1]
    return a, b, c, d


def _halves(words: Words, factor: int) -> tuple[Words, Words]:
    """The low and the high word of each product."""
    product = np.multiply(words, np.uint64(factor), dtype=np.uint64)
    halves = product.view(np.uint32).reshape(*product.shape, 2)
    return halves[..., _LOW], halves[..., 1 - _LOW]


def uniform(
    seeds: Sequence[int],
    positions: Sequence[int],
    lane: Lane | Sequence[Lane],
    starts: Sequence[int] | None = None,
    indices: Sequence[int] | None = None,
) -> Tensor:
    """Uniform numbers in [0, 1) of 53 random bits each, float64 [N].

    Computed on the host, where an operation on a few numbers costs least; `to_device` copies them.

    Args:
        seeds: 64-bit seeds.
        positions: absolute positions in their sequences, below 2^32.
        lane: the purpose of all numbers, or of each.
        starts: position at which the draft or round began, for rules that read a position in several rounds; None is 0.
        indices: index among the numbers of one position, below 2^32; None is 0.
    """
    words = coordinates(seeds, positions, starts)
    index = np.zeros(len(seeds), np.int64) if indices is None else np.array(indices, np.int64)
    lanes = np.full(len(seeds), lane, np.int64) if isinstance(lane, Lane) else np.array(lane, np.int64)
    u: Tensor = torch.ops.specdec.uniform(words, torch.from_numpy(index), torch.from_numpy(lanes))
    return u


def uniform_on_host(words: Tensor, indices: Tensor, lanes: Tensor) -> Tensor:
    """NumPy implementation of `uniform`; `words` are `coordinates` [4, N], `indices` and `lanes` int64 [N]."""
    low, high, position, start = _host_words(words)
    index, purpose = indices.numpy().astype(np.uint32), lanes.numpy().astype(np.uint32)
    first, second, _, _ = _philox_on_host((index, position, start, purpose), (low, high))
    return torch.from_numpy(_joined(first, second, 53) * 2.0**-53)


# `host_draw.cpp` of the engine registers an implementation for the CPU, if it is available.
torch.library.define("specdec::uniform", "(Tensor words, Tensor indices, Tensor lanes) -> Tensor")
torch.library.impl("specdec::uniform", "CompositeExplicitAutograd", uniform_on_host)


def final_uniform(seeds: Sequence[int], positions: Sequence[int], recovered: Sequence[bool]) -> Tensor:
    """The uniform of the last token of each round, in [0, 1), float64 [N].

    Recovered tokens have their own purpose, so they share no number with tokens that are drawn from p alone.
    """
    return uniform(seeds, positions, [Lane.RESIDUAL if each else Lane.BONUS for each in recovered])


def exponential_on_host(words: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """The shared noise of coupled mode on the host: e = -ln u(seed, position, id) with u in (0, 1), float64 [M].

    Args:
        words: `coordinates` of the rows, int64 [4, N].
        rows: int64 [M], the row that each element belongs to.
        ids: int64 [M], token ids.
    """
    low, high, position, start = _host_words(words)[:, rows.numpy()]
    # NumPy's arithmetic is faster than PyTorch's on the host, at any size.
    counter = ids.numpy().astype(np.uint32), position, start, start + np.uint32(Lane.COUPLING)
    first, second, _, _ = _philox_on_host(counter, (low, high))
    return _exponential(torch.from_numpy(_joined(first, second, 52)))


def exponential_on_device(words: Tensor, ids: Tensor) -> Tensor:
    """The shared noise of coupled mode on any device, float64 [N, K], as `exponential_on_host` computes it.

    `specdec.rules.noise_kernel` computes it in fewer operations.

    Args:
        words: `coordinates` of the rows, int64 [4, N].
        ids: int64 [N, K].
    """
    low, high, position, start = words[:, :, None]
    first, second, _, _ = philox((ids, position, start, start + Lane.COUPLING), (low, high))
    return _exponential((first << 20) | (second >> 12))


def rest_noise(words: Tensor) -> tuple[Tensor, Tensor]:
    """The noise of each row's unlikely tokens: an exponential and an independent uniform, both float64 [N].

    Computed on the host, like `uniform`. `words` are the `coordinates` of the rows, int64 [4, N].
    """
    low, high, position, start = _host_words(words)
    counter = start, position, start, start + np.uint32(Lane.COUPLING_REST)
    first, second, third, fourth = _philox_on_host(counter, (low, high))
    u = torch.from_numpy(_joined(third, fourth, 53) * 2.0**-53)
    return _exponential(torch.from_numpy(_joined(first, second, 52))), u


def _exponential(bits: Tensor) -> Tensor:
    # The half makes u, which is exact, neither 0 nor 1.
    return -torch.log((bits.double() + 0.5) * 2.0**-52)


def _joined(first: Words, second: Words, count: int) -> Integers:
    """The first `count` bits of two words each."""
    return (first.astype(np.int64) << (count - 32)) | (second >> np.uint32(64 - count))


def coordinates(seeds: Sequence[int], positions: Sequence[int], starts: Sequence[int] | None = None) -> Tensor:
    """Keys of the random numbers, int64 [4, N]: the low and high word of each seed, its position and its start."""
    words = (
        [seed & _WORD for seed in seeds],
        [seed >> 32 & _WORD for seed in seeds],
        positions,
        [0] * len(seeds) if starts is None else starts,
    )
    return torch.from_numpy(np.array(words, dtype=np.int64))


def _host_words(words: Tensor) -> Words:
    """Convert `coordinates` to the uint32 [4, N] that `_philox_on_host` reads."""
    return words.numpy().astype(np.uint32)
