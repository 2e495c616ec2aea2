"""The target's own draws on the host: `host_draw.cpp`, in place of NumPy's."""

import logging
from ctypes import c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from specdec.engine.cpp_library import SOURCES, LibraryMissing, load_library
from specdec.rules.coupling import Draw, draw_on_host
from specdec.rules.rng import coordinates

_log = logging.getLogger(__name__)


def load_draws(folder: Path = SOURCES) -> Draw:
    """The library's way to draw, once some of its draws were those of `draw_on_host`.

    Raises:
        LibraryMissing: it cannot be had on this machine.
    """
    library = load_library(folder / "host_draw.cpp")
    library.draw.argtypes = (c_void_p, c_int64, c_int64, c_void_p, c_double, c_void_p)
    library.draw.restype = None

    def draw(p: Tensor, words: Tensor, likely: float) -> Tensor:
        p, words = p.contiguous(), words.contiguous()
        drawn = torch.empty(len(p), dtype=torch.int64)
        library.draw(p.data_ptr(), *p.shape, words.data_ptr(), likely, drawn.data_ptr())
        return drawn

    _check(draw)
    return draw


@cache
def draw_by_operator() -> None:
    """Let the operator draw in this process from here on, where it can be had."""
    try:
        draw = load_draws()
    except LibraryMissing as missing:
        _log.info("draws are NumPy's, because their operator cannot be had: %s", missing)
    else:
        torch.library.impl("specdec::draw", "CPU", draw)


def _check(draw: Draw) -> None:
    """Compare draws of likely and of unlikely tokens."""
    rows, likely = 64, 0.01
    p = torch.rand(rows, 100, generator=torch.Generator().manual_seed(1)).square()
    p /= p.sum(-1, keepdim=True)
    words = coordinates(range(2**33, 2**33 + rows), range(rows))
    if not torch.equal(draw(p, words, likely), draw_on_host(p, words, likely)):
        raise LibraryMissing("it draws other tokens than NumPy")
