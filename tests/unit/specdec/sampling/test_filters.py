"""Filters of wide rows on the host, by PyTorch and by the operator, match the definition, which sorts the row."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec.engine.cpu.cpp_library import LibraryMissing
from specdec.engine.cpu.draw import load_draws
from specdec.sampling import filters
from specdec.sampling.filters import filtered_softmax
from specdec.sampling.params import SamplingParams

_WIDE = 20_000
"""Wider than the vocabulary size from which the filters start with a sample of the row."""


def by_operator(scores: Tensor, params: SamplingParams) -> Tensor:
    """Return the host operator's distributions. Skip the test without a C++ compiler."""
    limits = [[params.temperature, params.top_k, params.top_p, params.min_p]] * len(scores)
    try:
        return loaded().distributions(scores, torch.tensor(limits, dtype=torch.float64))
    except LibraryMissing as missing:
        pytest.skip(str(missing))


loaded = cache(load_draws)


Way = Callable[[Tensor, SamplingParams], Tensor]
WAYS: dict[str, Way] = {
    "torch": lambda scores, params: filtered_softmax(scores, [params] * len(scores)),
    "operator": by_operator,
}
BOTH = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def row(shape: str, seed: int) -> Tensor:
    """Return scores [V] of a shape, with a maximum of 0."""
    noise = torch.randn(_WIDE, generator=torch.Generator().manual_seed(seed))
    scores = {
        "flat": 0.1 * noise,
        "wide": 1.5 * noise,
        "peaked": 3.0 * noise,
        "one token": torch.cat([torch.tensor([30.0]), noise[1:]]),
        "falling ids": -1.1 * torch.arange(1, _WIDE + 1).float().log(),
        "rising ids": 1e-3 * torch.arange(_WIDE).float(),
        "bfloat16": (3.0 * noise).bfloat16().float(),
        "few values": (2.0 * noise).round(),
        "one value": torch.zeros(_WIDE),
        "few allowed": torch.where(torch.arange(_WIDE) % 997 == 5, noise, -math.inf),
        "periodic": torch.where(torch.arange(_WIDE) % 9 == 0, -40.0, noise),
    }[shape]
    return scores - scores.max()


SMOOTH = ("flat", "wide", "peaked", "one token", "falling ids", "rising ids")
TIED = ("bfloat16", "few values", "one value", "few allowed", "periodic")
SHAPES = st.sampled_from([*SMOOTH, *TIED])
TOP_P = st.one_of(st.floats(0.001, 0.999), st.sampled_from([1e-9, 0.5, 0.95, 1.0 - 1e-9]))


def floor_of_all(scores: np.ndarray, top_k: int, top_p: float) -> float:
    """Return the lowest kept score by the definition, which sorts the whole row."""
    best = np.sort(scores)[::-1]
    if top_k:
        best = best[best >= best[min(top_k, len(best)) - 1]]
    mass = np.exp(best, dtype=np.float64)
    before = mass.cumsum() - mass
    return float(best[max(int((before < top_p * mass.sum()).sum()) - 1, 0)])


def kept(scores: Tensor, params: SamplingParams, way: Way = WAYS["torch"]) -> np.ndarray:
    """Return the kept scores, best first."""
    p = way(scores[None], params)[0]
    return np.sort(scores[p > 0].numpy())[::-1]


def check_nucleus(scores: Tensor, top_k: int, top_p: float, way: Way) -> None:
    """Check the nucleus against the definition, allowing a rounding error of the mass at its end."""
    found = kept(scores, SamplingParams(top_k=top_k, top_p=top_p), way)
    highest, lowest = (floor_of_all(scores.numpy(), top_k, top_p * (1.0 + error)) for error in (-1e-6, 1e-6))
    possible = scores[scores.exp() > 0].numpy()
    assert lowest <= found[-1] <= highest or found[-1] == possible.min() >= lowest
    assert np.array_equal(found, np.sort(possible[possible >= found[-1]])[::-1])


@BOTH
@given(SHAPES, st.integers(0, 1000), TOP_P)
@settings(deadline=None, max_examples=60)
def test_a_nucleus_is_that_of_the_sorted_row(way: Way, shape: str, seed: int, top_p: float) -> None:
    check_nucleus(row(shape, seed), 0, top_p, way)


@BOTH
@given(SHAPES, st.integers(0, 1000), st.integers(1, _WIDE + 5), TOP_P)
@settings(deadline=None, max_examples=60)
def test_top_k_and_its_nucleus_are_those_of_the_sorted_row(
    way: Way, shape: str, seed: int, top_k: int, top_p: float
) -> None:
    scores = row(shape, seed)
    check_nucleus(scores, min(top_k, _WIDE), top_p, way)
    least = floor_of_all(scores.numpy(), min(top_k, _WIDE), 2.0)
    expected = scores[(scores >= least) & (scores.exp() > 0)].numpy()
    assert np.array_equal(kept(scores, SamplingParams(top_k=top_k), way), np.sort(expected)[::-1])


def test_a_sample_that_is_wrong_costs_time_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = row("wide", 1)
    wanted = [SamplingParams(top_p=0.9), SamplingParams(top_k=300), SamplingParams(top_k=300, top_p=0.9)]
    right = [kept(scores, params) for params in wanted]
    for wrong in (1.0, 1e-9, 1e-2):
        monkeypatch.setattr(filters, "_sample", lambda weights, wrong=wrong: np.full(2048, wrong, weights.dtype))
        assert all(np.array_equal(kept(scores, params), each) for params, each in zip(wanted, right, strict=True))


def test_only_a_part_of_a_wide_row_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    end = filters._end_of_nucleus

    def watched(weights: np.ndarray, before: float, wanted: float) -> tuple[float, bool]:
        sizes.append(len(weights))
        return end(weights, before, wanted)

    monkeypatch.setattr(filters, "_end_of_nucleus", watched)
    for shape in ("wide", "peaked", "one token", "bfloat16"):
        kept(row(shape, 2), SamplingParams(top_p=0.95))
    assert len(sizes) == 4
    assert max(sizes) < _WIDE / 10


@BOTH
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [SamplingParams(top_p=0.9), SamplingParams(top_k=50, top_p=0.9)], ids=["p", "kp"])
def test_a_wide_row_that_is_no_distribution_is_nan_everywhere(way: Way, bad: float, params: SamplingParams) -> None:
    scores = row("wide", 3)
    scores[17] = bad
    scores -= scores.max()
    assert bool(way(scores[None], params).isnan().all())
