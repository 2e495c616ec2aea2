"""C++ operators of the host for distributions, verdicts, draws and random numbers."""

import logging
from collections.abc import Callable, Iterator
from ctypes import CDLL, c_bool, c_double, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.engine.cpu.cpp_library import SOURCES, LibraryMissing, load_library
from specdec.rules.acceptance import judge_by_torch
from specdec.rules.checks import masses_on_host
from specdec.rules.coupling import Draw, draw_on_host
from specdec.rules.padding import FlatDrafts
from specdec.rules.proposal import likely_by_torch
from specdec.rules.rng import coordinates, uniform_on_host
from specdec.sampling.cache import empty
from specdec.sampling.filters import distributions_on_host
from specdec.trees.flat import FlatTrees
from specdec.trees.verification import judge_trees_by_torch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostDraws:
    """The libraries' operators, equivalent to the functions of the rules."""

    distributions: Callable[[Tensor, Tensor], Tensor]
    """`distributions_on_host` for float32, equal up to rounding."""
    draw: Draw
    """`draw_on_host` for float32."""
    judge: Callable[..., tuple[Tensor, Tensor]]
    """`judge_by_torch` for float32, except when a number is within rounding error of its threshold."""
    judge_trees: Callable[..., tuple[Tensor, Tensor]]
    """`judge_trees_by_torch` for float32, with the same exception."""
    likely: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    """`likely_by_torch` for float32; of ids that tie for the last place, the first."""
    masses: Callable[[Tensor], Tensor]
    """`masses_on_host` for float32, equal up to rounding."""
    uniform: Callable[[Tensor, Tensor, Tensor], Tensor]
    """`uniform_on_host`."""

    def serve(self) -> None:
        """Register the operators for the CPU in this process."""
        for name in ("distributions", "draw", "judge", "judge_trees", "likely", "masses", "uniform"):
            torch.library.impl(f"specdec::{name}", "CPU", getattr(self, name))


def load_draws(folder: Path = SOURCES) -> HostDraws:
    """Load the libraries' operators, and compare some of their results with the rules.

    Raises:
        LibraryMissing: an operator is not available on this machine, or differs from the rules.
    """
    names = ("host_distributions.cpp", "host_judge.cpp", "host_draw.cpp")
    draws = _opened(*(load_library(folder / name, [folder / "lanes.h"]) for name in names))
    for found in _differences(draws):
        raise LibraryMissing(found)
    return draws


@cache
def draw_by_operator() -> None:
    """Use the operators in this process if they are available."""
    try:
        draws = load_draws()
    except LibraryMissing as missing:
        _log.info("verdicts and draws are PyTorch's, because their operators cannot be had: %s", missing)
    else:
        draws.serve()


def _opened(filters: CDLL, judges: CDLL, draws: CDLL) -> HostDraws:
    distributions_into = _function(filters, "distributions", c_void_p, c_int64, c_int64, c_void_p, c_void_p)
    masses_into = _function(judges, "masses", c_void_p, c_int64, c_int64, c_void_p)
    drafts = (*[c_void_p] * 2, *[c_int64] * 2, *[c_void_p] * 9, c_bool)
    judge_into = _function(judges, "judge", *drafts, c_void_p, c_void_p)
    trees = (*[c_void_p] * 2, *[c_int64] * 2, *[c_void_p] * 11, *[c_int64] * 2, c_bool)
    judge_trees_into = _function(judges, "judge_trees", *trees, c_void_p, c_void_p)
    draw_into = _function(draws, "draw", c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_double, c_void_p)
    likely_into = _function(draws, "likely", c_void_p, *[c_int64] * 3, c_void_p, c_void_p)
    uniform_into = _function(draws, "uniform", c_void_p, c_int64, c_void_p, c_void_p, c_void_p)

    def distributions(scores: Tensor, limits: Tensor) -> Tensor:
        scores, limits = scores.contiguous(), limits.contiguous()
        p = empty(scores.shape, torch.float32)
        distributions_into(scores.data_ptr(), *scores.shape, limits.data_ptr(), p.data_ptr())
        return p

    def draw(p: Tensor, rows: Tensor, words: Tensor, likely: float) -> Tensor:
        p, rows, words = p.contiguous(), rows.contiguous(), words.contiguous()
        drawn = torch.empty_like(rows)
        draw_into(p.data_ptr(), p.shape[1], rows.data_ptr(), len(rows), words.data_ptr(), likely, drawn.data_ptr())
        return drawn

    def judge(p: Tensor, mass: Tensor, first: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        *flat, by_block = args
        p, mass, *parts = (each.contiguous() for each in (p, mass, first, *flat))
        tau, last = torch.empty_like(parts[0]), torch.empty_like(parts[0])
        drafts = [each.data_ptr() for each in parts]
        judge_into(
            p.data_ptr(), mass.data_ptr(), p.shape[1], len(tau), *drafts, by_block, tau.data_ptr(), last.data_ptr()
        )
        return tau, last

    def judge_trees(p: Tensor, mass: Tensor, first: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        *flat, replacement = args
        p, mass, *parts = (each.contiguous() for each in (p, mass, first, *flat))
        ends, last = torch.empty_like(parts[0]), torch.empty_like(parts[0])
        sizes = parts[-2].shape  # of u
        trees = [each.data_ptr() for each in parts]
        judge_trees_into(
            p.data_ptr(), mass.data_ptr(), p.shape[1], len(ends), *trees, *sizes[1:], replacement,
            ends.data_ptr(), last.data_ptr(),
        )  # fmt: skip
        return ends, last

    def likely(q: Tensor, k: int) -> tuple[Tensor, Tensor]:
        q = q.contiguous()
        mass, ids = torch.empty(len(q), k, dtype=torch.float64), torch.empty(len(q), k, dtype=torch.int64)
        likely_into(q.data_ptr(), *q.shape, k, mass.data_ptr(), ids.data_ptr())
        return mass, ids

    def masses(p: Tensor) -> Tensor:
        p = p.contiguous()
        mass = torch.empty(len(p), dtype=torch.float64)
        masses_into(p.data_ptr(), *p.shape, mass.data_ptr())
        return mass

    def uniform(words: Tensor, indices: Tensor, lanes: Tensor) -> Tensor:
        words, indices, lanes = words.contiguous(), indices.contiguous(), lanes.contiguous()
        u = torch.empty(len(indices), dtype=torch.float64)
        uniform_into(words.data_ptr(), len(indices), indices.data_ptr(), lanes.data_ptr(), u.data_ptr())
        return u

    return HostDraws(distributions, draw, judge, judge_trees, likely, masses, uniform)


def _function(library: CDLL, name: str, *arguments: Any) -> Any:
    found = getattr(library, name)
    found.argtypes, found.restype = arguments, None
    return found


def _differences(draws: HostDraws) -> Iterator[str]:
    """Differences between operators and rules, tested on rows with each filter, of likely and of unlikely tokens."""
    rows, likely = 64, 0.01
    random = torch.Generator().manual_seed(1)
    scores, limits = 2.0 * torch.randn(rows, 301, generator=random), _limits(rows)
    p = torch.rand(rows, 300, generator=random).square()
    p /= p.sum(-1, keepdim=True)
    words, indices = coordinates(range(2**33, 2**33 + rows), range(rows), range(rows)), torch.arange(rows)
    if not _close(draws.distributions(scores, limits), distributions_on_host(scores, limits), 1e-4):
        yield "it makes other distributions than PyTorch"
    if not torch.equal(draws.draw(p, indices, words, likely), draw_on_host(p, indices, words, likely)):
        yield "it draws other tokens than NumPy"
    if not torch.equal(draws.uniform(words, indices, indices % 6), uniform_on_host(words, indices, indices % 6)):
        yield "it makes other random numbers than NumPy"
    if not all(map(torch.equal, draws.likely(p, 3), likely_by_torch(p, 3))):
        yield "it finds other likely ids than PyTorch"
    if not _close(draws.masses(p), masses_on_host(p), 1e-12):
        yield "it adds up otherwise than PyTorch"
    sharp = (8.0 * torch.rand(8 * rows, 300, generator=random) ** 4).softmax(-1)
    mass, flat = masses_on_host(sharp), _drafts(sharp, random)
    for by_block in (False, True):
        judged = draws.judge(sharp, mass, *flat, by_block), judge_by_torch(sharp, mass, *flat, by_block)
        if not all(map(torch.equal, *judged)):
            yield "it judges otherwise than PyTorch"
    yield from _differences_of_trees(draws, sharp, mass, random)


def _differences_of_trees(draws: HostDraws, p: Tensor, mass: Tensor, random: torch.Generator) -> Iterator[str]:
    flat = _forks(p, random)
    for replacement in (False, True):
        judged = draws.judge_trees(p, mass, *flat, replacement), judge_trees_by_torch(p, mass, *flat, replacement)
        if not all(map(torch.equal, *judged)):
            yield "it judges trees otherwise than PyTorch"


def _close(found: Tensor, expected: Tensor, error: float) -> bool:
    return torch.allclose(found, expected, rtol=error, atol=0.0)


def _limits(rows: int) -> Tensor:
    """Limits that cycle through two temperatures, each with and without top-k, top-p and min-p."""
    ways = [(t, k, p, m) for t in (1.0, 0.6) for k in (0, 20) for p in (1.0, 0.9) for m in (0.0, 0.02)]
    return torch.tensor([ways[row % len(ways)] for row in range(rows)], dtype=torch.float64)


def _drafts(p: Tensor, random: torch.Generator) -> FlatDrafts:
    """Drafts of 0 to 3 tokens for the rows of p; each q̂ is similar to p, over 20 of its likely ids."""
    lengths, size = torch.arange(len(p) // 10 * 4) % 4, 20
    first = (lengths + 1).cumsum(0) - lengths - 1
    drafted = torch.cat([torch.arange(start, start + count) for start, count in zip(first, lengths, strict=True)])
    ids, weights = _similar(p[drafted], size, random)
    place = weights.double().multinomial(1, generator=random)
    u = torch.rand(len(drafted), generator=random, dtype=torch.float64)
    last = torch.rand(len(drafted) + len(first), generator=random, dtype=torch.float64)
    return FlatDrafts(
        first=first, lengths=lengths, tokens=ids.gather(1, place)[:, 0], sizes=torch.full((len(drafted),), size),
        ids=ids.flatten(), weights=weights.flatten(), u=u, lenience=1.0 - 0.5 * (lengths == 3).double(), last=last,
    )  # fmt: skip


def _forks(p: Tensor, random: torch.Generator) -> FlatTrees:
    """Trees for the rows of p: for the first position two drafts and one of another drafter, then two."""
    count, size = len(p) // 6, 20
    drafted = (6 * torch.arange(count)[:, None] + torch.tensor([0, 0, 1])).flatten()
    ids, weights = _similar(p[drafted], size, random)
    tokens = ids.gather(1, weights.double().multinomial(2, generator=random)).view(count, 3, 2)
    return FlatTrees(
        first=6 * torch.arange(count),
        lengths=torch.full((count,), 5),
        tokens=torch.stack([*tokens[:, 0].T, tokens[:, 1, 0], *tokens[:, 2].T], 1).flatten(),
        drafters=torch.tensor([2, 1, 0, 0, 0, 0]).repeat(count),
        families=torch.tensor([2, 1, 2]).repeat(count),
        children=torch.arange(5).repeat(count),
        sizes=torch.full((3 * count,), size),
        ids=ids.flatten(),
        weights=weights.flatten(),
        u=torch.rand(count, 3, 3, generator=random, dtype=torch.float64),
        last=torch.rand(count, 3, 2, generator=random, dtype=torch.float64),
    )


def _similar(p: Tensor, size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids and weights of a q̂ that is similar to each row of p, over `size` of its likely ids, both int64 [N, size]."""
    noise = torch.rand(p.shape, generator=random)
    ids = (p * noise).topk(size).indices.sort(-1).values
    return ids, (p.gather(1, ids) * noise[:, :size] * 1e5).long() + 1
