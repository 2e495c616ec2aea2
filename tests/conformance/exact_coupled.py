"""The exact law of coupled mode's choice, from the slopes of its race, which are read from the real decision."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from specdec.rules import coupling


@contextmanager
def noise(table: Tensor) -> Iterator[None]:
    """Give seed s the noise table[s, t, v] for id v at position t. The table is [N, positions, V]."""

    def given(words: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        seeds, _, positions, _ = words[:, rows]
        return table[seeds, positions, ids]

    with patch.object(coupling, "exponential_on_host", given):
        yield


def winners(p: Tensor, table: Tensor) -> Tensor:
    """Return the winner of each race of p [N, V] against table [N, V]."""
    with noise(table[:, None]):
        return coupling.draw(p, range(len(p)), [0] * len(p))


def chances(p: Tensor, own: float = 1.0) -> Tensor:
    """Return P(i wins) for each id of p [V], from slopes measured at the winner's noise `own`."""
    size = len(p)
    first, second = (each.flatten() for each in torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"))
    rows = torch.arange(size * size)
    low, high = torch.zeros(len(rows), dtype=torch.float64), torch.full((len(rows),), 1e6, dtype=torch.float64)
    for _ in range(100):
        middle = (low + high) / 2
        table = torch.full((len(rows), size), torch.inf, dtype=torch.float64)
        table[rows, first], table[rows, second] = own, torch.where(first == second, own, middle)
        lost = winners(p.expand(len(rows), -1), table) != first
        low, high = torch.where(lost, middle, low), torch.where(lost, high, middle)
    slopes = torch.where(first == second, 1.0, low / own).view(size, size)
    return torch.where(p > 0, 1 / slopes.sum(1), 0.0)
