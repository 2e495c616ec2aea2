"""What the host draws by: `host_distributions.cpp` and `host_draw.cpp`, in place of NumPy's and PyTorch's way."""

import logging
from collections.abc import Callable
from ctypes import CDLL, c_double, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from specdec.engine.cpp_library import SOURCES, LibraryMissing, load_library
from specdec.rules.block_sampling import BLOCK, block_sums_on_host
from specdec.rules.cache import empty
from specdec.rules.coupling import Draw, draw_on_host
from specdec.rules.filters import distributions_on_host
from specdec.rules.rng import coordinates, uniform_on_host

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostDraws:
    """The libraries' operators, which return what the functions of the rules do."""

    distributions: Callable[[Tensor, Tensor], Tensor]
    """`distributions_on_host`, of float32, but for rounding."""
    draw: Draw
    """`draw_on_host`, of float32."""
    uniform: Callable[[Tensor, Tensor, int], Tensor]
    """`uniform_on_host`."""
    block_sums: Callable[[Tensor], Tensor]
    """`block_sums_on_host`, of float32, but for the order of its additions."""

    def serve(self) -> None:
        """Let them do the work in this process from here on."""
        torch.library.impl("specdec::distributions", "CPU", self.distributions)
        torch.library.impl("specdec::draw", "CPU", self.draw)
        torch.library.impl("specdec::uniform", "CPU", self.uniform)
        torch.library.impl("specdec::block_sums", "CPU", self.block_sums)


def load_draws(folder: Path = SOURCES) -> HostDraws:
    """The libraries' operators, once some of their results were those of the rules.

    Raises:
        LibraryMissing: they cannot be had on this machine.
    """
    names = ("host_distributions.cpp", "host_draw.cpp")
    draws = _opened(*(load_library(folder / name, [folder / "lanes.h"]) for name in names))
    _check(draws)
    return draws


@cache
def draw_by_operator() -> None:
    """Let the operators draw in this process from here on, where they can be had."""
    try:
        draws = load_draws()
    except LibraryMissing as missing:
        _log.info("draws are NumPy's, because their operators cannot be had: %s", missing)
    else:
        draws.serve()


def _opened(filters: CDLL, library: CDLL) -> HostDraws:
    filters.distributions.argtypes, filters.distributions.restype = (
        (c_void_p, c_int64, c_int64, c_void_p, c_void_p),
        None,
    )
    library.draw.argtypes = (c_void_p, c_int64, c_int64, c_void_p, c_double, c_void_p)
    library.uniform.argtypes = (c_void_p, c_void_p, c_int64, c_int64, c_void_p)
    library.block_sums.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_void_p)
    library.draw.restype = library.uniform.restype = library.block_sums.restype = None

    def distributions(scores: Tensor, limits: Tensor) -> Tensor:
        scores, limits = scores.contiguous(), limits.contiguous()
        p = empty(scores.shape, torch.float32)
        filters.distributions(scores.data_ptr(), *scores.shape, limits.data_ptr(), p.data_ptr())
        return p

    def draw(p: Tensor, words: Tensor, likely: float) -> Tensor:
        p, words = p.contiguous(), words.contiguous()
        drawn = torch.empty(len(p), dtype=torch.int64)
        library.draw(p.data_ptr(), *p.shape, words.data_ptr(), likely, drawn.data_ptr())
        return drawn

    def uniform(words: Tensor, indices: Tensor, lane: int) -> Tensor:
        words, indices = words.contiguous(), indices.contiguous()
        u = torch.empty(len(indices), dtype=torch.float64)
        library.uniform(words.data_ptr(), indices.data_ptr(), len(indices), lane, u.data_ptr())
        return u

    def block_sums(p: Tensor) -> Tensor:
        p = p.contiguous()
        sums = torch.empty(len(p), -(-p.shape[1] // BLOCK), dtype=torch.float64)
        library.block_sums(p.data_ptr(), *p.shape, BLOCK, sums.data_ptr())
        return sums

    return HostDraws(distributions, draw, uniform, block_sums)


def _check(draws: HostDraws) -> None:
    """Compare what each filter leaves, alone and with the others, draws of likely and of unlikely tokens, uniforms, and
    sums of blocks of which the last is not whole.
    """
    rows, likely = 64, 0.01
    scores, limits = 2.0 * torch.randn(rows, 301, generator=torch.Generator().manual_seed(1)), _limits(rows)
    if not torch.allclose(
        draws.distributions(scores, limits), distributions_on_host(scores, limits), rtol=1e-4, atol=0.0
    ):
        raise LibraryMissing("it makes other distributions than PyTorch")
    p = torch.rand(rows, 300, generator=torch.Generator().manual_seed(1)).square()
    p /= p.sum(-1, keepdim=True)
    words, indices = coordinates(range(2**33, 2**33 + rows), range(rows), range(rows)), torch.arange(rows)
    if not torch.equal(draws.draw(p, words, likely), draw_on_host(p, words, likely)):
        raise LibraryMissing("it draws other tokens than NumPy")
    if not torch.equal(draws.uniform(words, indices, 3), uniform_on_host(words, indices, 3)):
        raise LibraryMissing("it makes other random numbers than NumPy")
    if not torch.allclose(draws.block_sums(p), block_sums_on_host(p), rtol=1e-12, atol=0.0):
        raise LibraryMissing("it adds up otherwise than PyTorch")


def _limits(rows: int) -> Tensor:
    """Each of two temperatures, with and without top-k, top-p and min-p, in turns."""
    ways = [(t, k, p, m) for t in (1.0, 0.6) for k in (0, 20) for p in (1.0, 0.9) for m in (0.0, 0.02)]
    return torch.tensor([ways[row % len(ways)] for row in range(rows)], dtype=torch.float64)
