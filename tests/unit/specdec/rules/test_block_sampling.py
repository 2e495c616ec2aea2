"""Draws by the sums of blocks are the draws of the cumulative sum."""

import pytest
import torch
from torch import Tensor

from specdec.errors import InternalError
from specdec.rules import block_sampling
from specdec.rules.block_sampling import block_sums, sample_by_blocks
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
