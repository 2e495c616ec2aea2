"""The ratio rules, one position or a few at a time; tests/conformance checks whole joints and properties."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec.rules.acceptance import block, block_h, block_pi, rejection, residual

Distributions = tuple[Tensor, Tensor]

MASSES = st.integers(2, 8).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(0, 1), min_size=size, max_size=size).filter(any)] * 2)
)


def distributions(masses: tuple[list[float], list[float]]) -> Distributions:
    p, q = (torch.tensor(mass, dtype=torch.float64) for mass in masses)
    return p / p.sum(), q / q.sum()


def column(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(
    ("p_x", "q_x", "u", "tau"),
    [
        ((0.5, 0.5), (0.5, 0.5), (0.99, 0.99), 2),
        ((0.2, 0.5), (0.4, 0.5), (0.49, 0.0), 2),
        ((0.2, 0.5), (0.4, 0.5), (0.50, 0.0), 0),
        ((0.5, 0.0), (0.5, 0.5), (0.0, 0.0), 1),
        ((0.0, 0.5), (1.0, 0.5), (0.0, 0.0), 0),
    ],
)
def test_rejection_keeps_the_leading_drafts_with_u_q_below_p(
    p_x: tuple[float, ...], q_x: tuple[float, ...], u: tuple[float, ...], tau: int
) -> None:
    assert int(rejection(column(*p_x), column(*q_x), column(*u))) == tau


def or_equal(p_x: Tensor, q_x: Tensor, u: Tensor) -> Tensor:
    """Planted bug: `<=`, which keeps an impossible token at u = 0."""
    return (u * q_x <= p_x).cumprod(1).sum(1)


def never_keeps_the_impossible(rule: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool:
    return all(int(rule(column(0.0), column(q), column(u))) == 0 for q in (1.0, 1e-9) for u in (0.0, 2.0**-53, 0.5))


def test_an_impossible_token_is_never_kept_and_a_planted_equal_is_caught() -> None:
    assert never_keeps_the_impossible(rejection)
    assert not never_keeps_the_impossible(or_equal)
    assert int(block(column(0.0), column(0.0))) == 0


@given(MASSES, st.floats(0, 1))
def test_h_is_z_over_z_plus_one_minus_pi(masses: tuple[list[float], list[float]], scale: float) -> None:
    """Compares the O(k) form (π - m)/(1 - m) with the paper's, with Z = Σ(π·p - q)₊ over the whole vocabulary."""
    p, q = distributions(masses)
    support = (q > 0).nonzero()[:, 0]
    pi = column(1.0, scale, 0.0)
    p_s, q_s = torch.zeros(1, 3, len(support)).double(), torch.zeros(1, 3, len(support)).double()
    p_s[0, 1], q_s[0, 1] = p[support], q[support]
    z = float((scale * p - q).clamp_min(0).sum())
    if z + 1 - scale > 1e-6:
        assert float(block_h(pi, p_s, q_s)[0, 0]) == pytest.approx(z / (z + 1 - scale), abs=1e-9)


def test_pi_is_the_clamped_product_of_ratios() -> None:
    pi = block_pi(column(0.2, 0.9, 0.1), column(0.4, 0.3, 0.2))
    torch.testing.assert_close(pi, column(1.0, 0.5, 1.0, 0.5))


def test_the_last_h_is_pi_and_padding_is_never_kept() -> None:
    """A draft of one in a batch of three: p_x = 0 and q_x = 1 past its end, no support there."""
    pi = block_pi(column(0.2, 0.0, 0.0), column(0.4, 1.0, 1.0))
    support = torch.zeros(1, 4, 2).double()
    support[0, 0] = 0.5
    h = block_h(pi, support, support)
    torch.testing.assert_close(h, column(0.5, 0.0, 0.0))
    assert int(block(h, column(0.0, 0.0, 0.0))) == 1


def test_p_equal_to_q_keeps_everything_without_a_nan() -> None:
    p_s = torch.full((1, 4, 2), 0.5, dtype=torch.float64)
    q_s = p_s.clone()
    q_s[0, 3] = 0.0
    h = block_h(block_pi(column(0.5, 0.5, 0.5), column(0.5, 0.5, 0.5)), p_s, q_s)
    assert bool(h.isfinite().all())
    assert int(block(h, column(0.999, 0.999, 0.999))) == 3


@pytest.mark.parametrize(
    ("eta", "tau"), [((0.9, 0.9, 0.1), 3), ((0.1, 0.1, 0.9), 2), ((0.1, 0.9, 0.9), 1), ((0.9, 0.9, 0.9), 0)]
)
def test_block_keeps_up_to_the_largest_success(eta: tuple[float, ...], tau: int) -> None:
    assert int(block(column(0.5, 0.5, 0.5), column(*eta))) == tau


def test_no_drafts_are_zero_kept() -> None:
    none = torch.zeros(3, 0, dtype=torch.float64)
    assert rejection(none, none, none).tolist() == [0, 0, 0]
    assert block_pi(none, none).tolist() == [[1.0]] * 3
    assert block(none, none).tolist() == [0, 0, 0]


def test_without_a_q_the_residual_is_p_up_to_scale() -> None:
    p = column(0.25, 0.75)
    left = residual(p, torch.tensor([0.5]).double(), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2).double())
    torch.testing.assert_close(left, 0.5 * p)


def test_the_residual_of_equal_distributions_is_p() -> None:
    p = column(0.25, 0.75)
    assert torch.equal(residual(p, torch.ones(1).double(), torch.tensor([[0, 1]]), p), p)
