"""Normalized entropy of a distribution: 0 for a point mass, 1 for a uniform distribution."""

import pytest
import torch

from specdec.planning.certainty import certainties


def test_entropy_is_a_share_of_the_most_there_can_be_among_the_allowed_ids() -> None:
    q = torch.tensor([[0.25] * 4, [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1]])
    flat, sure, half, peaked = certainties(q, [0, 1, 1, 0])
    assert (flat.entropy, sure.entropy, half.entropy) == pytest.approx((1.0, 0.0, 1.0))
    assert peaked.entropy == pytest.approx(0.678, abs=0.001)
    assert [each.confidence for each in (flat, sure, half, peaked)] == pytest.approx([0.25, 1.0, 0.5, 0.7])
