"""Draws by the sums of blocks are the draws of the cumulative sum."""

import pytest
import torch
from torch import Tensor

from specdec.errors import InternalError
from specdec.rules import block_sampling
from specdec.rules.acceptance import Rest, sample_rest
from specdec.rules.block_sampling import block_sums, sample_by_blocks, sample_rest_by_blocks
from specdec.rules.checks import masses
from specdec.rules.sampling import sample
from tests.unit.specdec.rules.random_drafts import distributions


def uniforms(rows: int) -> Tensor:
    u = torch.rand(rows, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    u[0], u[-1] = 0.0, 1.0 - 2.0**-53
    return u


def slowly(p: Tensor, u: Tensor) -> Tensor:
    return sample(p.double() / masses(p, len(p))[:, None], u)


def by_blocks(p: Tensor, u: Tensor) -> Tensor:
    return sample_by_blocks(p, block_sums(p, len(p)), u)


@pytest.mark.parametrize("wide", [1, 2, 127, 128, 129, 2048, 20_011])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_draw_is_that_of_the_cumulative_sum(wide: int, dtype: torch.dtype) -> None:
    p, u = distributions(200, wide, wide, dtype), uniforms(200)
    assert torch.equal(by_blocks(p, u), slowly(p, u))


def test_ids_without_probability_are_never_drawn() -> None:
    p = distributions(300, 1, 1000)
    p[:, :400] = p[:, 700:] = 0.0
    p[torch.rand(p.shape, generator=torch.Generator().manual_seed(4)) < 0.9] = 0.0
    p[:, 555] = 0.1
    drawn = by_blocks(p, uniforms(300))
    assert bool((p.gather(1, drawn[:, None]) > 0).all())
    assert torch.equal(drawn, slowly(p, uniforms(300)))


def test_a_number_at_a_border_is_drawn_from_the_cumulative_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    p, asked = torch.full((8, 512), 1 / 512), list[int]()

    def counted(law: Tensor, u: Tensor) -> Tensor:
        asked.append(len(law))
        return sample(law, u)

    monkeypatch.setattr(block_sampling, "sample", counted)
    u = torch.tensor([0.0, 1 / 512, 128 / 512, 3.5 / 512, 200.5 / 512, 256 / 512, 511 / 512, 1 - 2.0**-53]).double()
    assert by_blocks(p, u).tolist() == slowly(p, u).tolist()
    assert asked == [6]


def test_a_border_that_both_ways_round_to_different_sides_is_drawn_alike() -> None:
    p = distributions(1, 9, 5000)
    borders = (p.double() / masses(p, 1)[:, None]).cumsum(-1)[0, 100:400]
    u = torch.cat([borders, torch.nextafter(borders, borders - 1), torch.nextafter(borders, borders + 1)])
    rows = p.expand(len(u), -1).contiguous()
    assert torch.equal(by_blocks(rows, u), slowly(rows, u))


def rests(p: Tensor, count: int, size: int) -> Rest:
    """What drafts leave of random rows of p: each q̂ is near its row at some ids, a third of them take nothing."""
    generator = torch.Generator().manual_seed(size)
    rows = torch.randint(len(p), (count,), generator=generator)
    ids = torch.rand(count, p.shape[1], generator=generator).argsort(1)[:, :size].sort(1).values
    q = p[rows[:, None], ids].double() * (0.5 + torch.rand(count, size, generator=generator, dtype=torch.float64))
    q = q / q.sum(1, keepdim=True)
    q[torch.rand(count, generator=generator) < 0.3] = 0.0
    if size > 1:
        ids[::2, -1], q[::2, -1] = 0, 0.0  # past the end of a support
    scale = torch.where(torch.rand(count, generator=generator) < 0.5, 1.0, 0.6).double()
    return Rest(rows, scale, ids, q)


@pytest.mark.parametrize(
    ("wide", "size"), [(1, 1), (5, 3), (127, 20), (300, 64), (2048, 64), (20_011, 64), (20_011, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_draft_leaves_is_drawn_as_from_the_whole_row(wide: int, size: int, dtype: torch.dtype) -> None:
    p = distributions(50, wide, wide, dtype)
    rest, u = rests(p, 400, size), uniforms(400)
    sums = block_sums(p, len(p))
    assert torch.equal(sample_rest_by_blocks(p, sums, rest, u), sample_rest(p, sums.sum(-1), rest, u))


@pytest.mark.parametrize("left", [0.0, 1e-15, 1e-9])
def test_where_drafts_leave_next_to_nothing_the_whole_row_decides(left: float) -> None:
    p = distributions(20, 3, 1000, torch.float64)
    p[:, 100:] = 0.0
    p[:, 99] += left
    sums = block_sums(p, len(p))
    q = p[:, :100] / sums.sum(-1, keepdim=True)
    q[:, 99] -= left
    rest = Rest(torch.arange(20), torch.ones(20).double(), torch.arange(100).expand(20, -1), q.clamp_min(0.0))
    drawn = sample_rest_by_blocks(p, sums, rest, uniforms(20))
    assert torch.equal(drawn, sample_rest(p, sums.sum(-1), rest, uniforms(20)))


def test_most_draws_behind_a_draft_need_no_whole_row(monkeypatch: pytest.MonkeyPatch) -> None:
    p = distributions(50, 5, 20_011)
    monkeypatch.setattr(block_sampling, "sample_rest", None)
    sample_rest_by_blocks(p, block_sums(p, 50), rests(p, 400, 64), torch.linspace(0.001, 0.999, 400).double())


def test_sums_tell_what_is_no_distribution() -> None:
    p = distributions(4, 2, 300)
    p[1, 7], p[2, 200], p[3, 299] = float("nan"), -0.5, float("inf")
    mass = block_sums(p, 4).sum(-1)
    assert mass[0].item() == pytest.approx(1.0)
    assert mass[1].isnan()
    assert mass[2:].tolist() == [-float("inf"), float("inf")]
    by_blocks(p, uniforms(4))  # without an error: the verdict leaves these tokens out


@pytest.mark.parametrize("p", [torch.ones(2, 3, dtype=torch.int64), torch.ones(3, 3), torch.ones(3)])
def test_other_shapes_are_refused(p: Tensor) -> None:
    with pytest.raises(InternalError, match="need 2 rows"):
        block_sums(p, 2)
