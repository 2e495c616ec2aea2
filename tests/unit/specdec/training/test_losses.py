"""The divergence of a training step: its value and its gradient."""

import pytest
import torch
from torch import Tensor

from specdec.training.losses import SHARP_TEMPERATURE, divergence_of

PLACES = torch.tensor([3, -1, 0, 1, 2, -1, 4])
IDS = torch.tensor([[0, 1, 3], [6, 2, 4], [5, 0, 2]])


def by_autograd(log_p: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """The definition, one token at a time, with PyTorch's own gradient."""
    found = torch.zeros(3)
    for row, ids in enumerate(IDS):
        log_q, sharp_q = logits[row].log_softmax(-1), (logits[row] / SHARP_TEMPERATURE).softmax(-1)
        sharp_p, shared, sharply = (log_p[row] / SHARP_TEMPERATURE).softmax(-1), torch.zeros(()), torch.zeros(())
        for column, place in enumerate(PLACES[ids].tolist()):
            if place >= 0:
                p = log_p[row, column].exp()
                found[0] = found[0] - p * log_q[place] / len(IDS)
                shared = shared + torch.minimum(p, log_q[place].exp())
                sharply = sharply + torch.minimum(sharp_p[column], sharp_q[place])
        found[1:] = found[1:] + (1 - torch.stack([shared, sharply])) / len(IDS)
    return found @ weights


@pytest.mark.parametrize("weights", [*torch.eye(3), torch.tensor([0.1, 0.9, 0.9])])
def test_the_divergence_has_the_gradient_of_its_definition(weights: Tensor) -> None:
    generator = torch.Generator().manual_seed(5)
    log_p = (torch.rand(3, 3, generator=generator) * 0.33).log()
    wanted, found = (torch.randn(3, 5, generator=generator.manual_seed(7)).requires_grad_() for _ in range(2))
    expected, actual = by_autograd(log_p, wanted, weights), divergence_of(IDS, log_p, PLACES, found, weights)
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)
    (0.8 * expected).backward()
    (0.8 * actual).backward()
    torch.testing.assert_close(found.grad, wanted.grad)
