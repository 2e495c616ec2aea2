"""q̂ stays sparse: the memory that a verdict allocates for drafts grows with the support, not with the vocabulary.

The tests count elements of every tensor that an operation makes, not time. A verdict may make a few rows as wide as the
vocabulary per session, for the one token it adds. It must make none per drafted position beyond p itself.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specdec.rules.draft import Draft
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify

SUPPORT = 8
VOCAB = 4_096
FINAL_ROWS = 12
"""Rows as wide as the vocabulary that the residual and draw of the last token make, rounded up."""


class Elements(TorchDispatchMode):
    """Count the elements that operations make. Views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = 0
        """Elements in float64 tensors at least as wide as the vocabulary."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dim() and made.shape[-1] >= VOCAB and not shares_memory(made, args):
            self.wide += made.numel()
        return made


def shares_memory(made: torch.Tensor, args: Any) -> bool:
    """Whether a result is a view of an argument, or the argument itself."""
    storages = [each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)]
    return made.untyped_storage().data_ptr() in storages


def wide_elements(mode: Mode, gamma: int) -> int:
    """Return the wide elements of one session's verdict on γ drafts."""
    generator = torch.Generator().manual_seed(1)
    q, p = (torch.randn(rows, VOCAB, generator=generator).softmax(-1) for rows in (gamma, gamma + 1))
    tokens, probs = propose(mode, q, [1] * gamma, list(range(gamma)), SUPPORT, [0] * gamma)
    with Elements() as counted:
        verify(mode, p, [Draft(tuple(tokens), tuple(probs))], [1], [0])
    return counted.wide


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_a_longer_draft_makes_nothing_more_as_wide_as_the_vocabulary(mode: Mode) -> None:
    """The check that p is a distribution makes one boolean or sum a row, which is not as wide."""
    short, long = wide_elements(mode, 2), wide_elements(mode, 16)
    assert 0 < short <= FINAL_ROWS * VOCAB
    assert long == short
