"""Counter-based numbers: the published Philox, determined by the coordinates alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec.rules.rng import (
    Lane,
    coordinates,
    exponential_on_device,
    exponential_on_host,
    philox,
    uniform,
)

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**32 - 1)

# Random123 1.14, tests/kat_vectors, philox 4x32 10.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[Tensor, ...]:
    return tuple(torch.tensor([int(word, 16)]) for word in text.split())


def noise(seed: int, position: int, ids: list[int]) -> Tensor:
    words = coordinates([seed], [position])
    return exponential_on_host(words, torch.zeros(len(ids), dtype=torch.int64), torch.tensor(ids))


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    assert philox(words(counter), words(key)) == words(answer)


def test_philox_is_elementwise() -> None:
    counters, keys, answers = (
        tuple(torch.cat(column) for column in zip(*(words(row[part]) for row in KNOWN_ANSWERS), strict=True))
        for part in range(3)
    )
    for got, expected in zip(philox(counters, keys), answers, strict=True):
        assert torch.equal(got, expected)


def test_these_numbers_never_change() -> None:
    assert uniform([2**64 - 1, 7], [5, 2**31], Lane.RESIDUAL).tolist() == [0.31242406491000496, 0.605746149004017]
    assert noise(7, 3, [0, 151_935]).tolist() == pytest.approx([0.13947960667517156, 0.1614114185250613], rel=1e-15)


@given(st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=40), st.sampled_from(Lane))
def test_a_batch_gives_what_single_calls_give(coordinates: list[tuple[int, int]], lane: Lane) -> None:
    seeds, positions = zip(*coordinates, strict=True)
    batched = uniform(seeds, positions, lane)
    single = torch.cat([uniform([seed], [position], lane) for seed, position in coordinates])
    assert torch.equal(batched, single)


@given(SEEDS, POSITIONS, st.lists(st.integers(0, 200_000), min_size=2, max_size=60))
def test_noise_is_by_id_and_not_by_place(seed: int, position: int, ids: list[int]) -> None:
    together = noise(seed, position, ids)
    assert torch.equal(together, torch.cat([noise(seed, position, [token]) for token in ids]))


@given(SEEDS, POSITIONS)
def test_seed_position_lane_start_and_index_each_matter(seed: int, position: int) -> None:
    values = [uniform([seed], [position], lane).item() for lane in Lane]
    values.append(uniform([seed ^ 1], [position], Lane.DRAFT).item())
    values.append(uniform([seed ^ 2**63], [position], Lane.DRAFT).item())
    values.append(uniform([seed], [position ^ 1], Lane.DRAFT).item())
    values.append(uniform([seed], [position], Lane.DRAFT, starts=[1]).item())
    values.append(uniform([seed], [position], Lane.DRAFT, indices=[1]).item())
    assert len(set(values)) == len(values)


def test_no_start_is_start_zero_and_no_index_is_index_zero() -> None:
    assert torch.equal(uniform([3], [9], Lane.DRAFT), uniform([3], [9], Lane.DRAFT, starts=[0], indices=[0]))


@pytest.mark.parametrize("lane", Lane)
def test_uniforms_are_uniform(lane: Lane) -> None:
    """20,000 numbers in 50 cells: G = 49 ± 9.9 if uniform; 120 has chance 5e-8."""
    count = 20_000
    u = uniform([11] * count, range(count), lane)
    assert 0.0 <= float(u.min()) < float(u.max()) < 1.0
    observed = torch.histc(u, 50, 0.0, 1.0)
    assert float(2 * (observed * (observed * 50 / count).log()).sum()) < 120


def test_neighbours_in_every_coordinate_are_uncorrelated() -> None:
    """Correlation of 20,000 pairs is 0 ± 0.0071; 0.04 is over five of those."""
    count = 20_000
    base = uniform([11] * count, range(count), Lane.DRAFT)
    others = [
        uniform([12] * count, range(count), Lane.DRAFT),
        uniform([11] * count, range(1, count + 1), Lane.DRAFT),
        uniform([11] * count, range(count), Lane.DRAFT, starts=[1] * count),
        uniform([11] * count, range(count), Lane.DRAFT, indices=[1] * count),
        *(uniform([11] * count, range(count), lane) for lane in Lane if lane is not Lane.DRAFT),
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([base, other]))[0, 1])) < 0.04


def test_noise_is_exponential_and_never_zero() -> None:
    """Mean and variance of 50,000 draws are 1; the bounds are over five standard errors."""
    e = noise(5, 8, list(range(50_000)))
    assert float(e.min()) > 0.0
    assert bool(e.isfinite().all())
    assert abs(float(e.mean()) - 1.0) < 0.025
    assert abs(float(e.var()) - 1.0) < 0.07


def test_another_device_gives_the_same_noise(device: torch.device) -> None:
    seeds, positions, rows = range(2**62, 2**62 + 1000), range(1000), torch.arange(1000)
    ids = torch.arange(150_000, 151_000)
    words = coordinates(seeds, positions)
    torch.testing.assert_close(
        exponential_on_device(words.to(device), ids[:, None].to(device))[:, 0].cpu(),
        exponential_on_host(words, rows, ids),
        rtol=1e-15,
        atol=0,
    )


def test_no_coordinates_give_no_numbers() -> None:
    assert uniform([], [], Lane.DRAFT).shape == (0,)
