"""G-tests of joint sequences against their exact law, and the rate of their false alarms."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.conformance.table_models import Context

OFTEN = 10
"""Least expected number of outputs in a cell of the G-test."""

Law = dict[Context, float]
"""The probability of every whole output."""


def g_test(outputs: Sequence[Context], law: Tensor, vocab_size: int) -> float:
    """Return the p-value of the outputs against the exact law [V ** length]. Cells expected under 5 times are pooled.

    Return 0 if an impossible output was seen.
    """
    observed = torch.zeros_like(law)
    for output in outputs:
        cell = 0
        for token in output:
            cell = cell * vocab_size + token
        observed[cell] += 1
    expected = law * len(outputs)
    if bool((observed[law == 0] > 0).any()):
        return 0.0
    rare = expected < 5
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    seen = observed > 0
    g = 2 * (observed[seen] * (observed[seen] / expected[seen]).log()).sum()
    freedom = ((expected > 0).sum() - 1).double()
    return float(torch.special.gammaincc(freedom / 2, g / 2))


def p_value(outputs: Sequence[Context], law: Law) -> float:
    """Return the p-value of a G-test of the outputs against the law, or 0 if one of them is impossible."""
    numbers, chances = _numbered(law, len(outputs))
    seen = [(numbers[output] if output in numbers else len(chances),) for output in outputs]
    return g_test(seen, torch.cat([chances, chances.new_zeros(1)]), len(chances) + 1)


def false_alarms(law: Law, outputs: int, below: float, trials: int) -> float:
    """Return the rate at which samples of the law itself, of `outputs` each, have a p-value under `below`.

    With few outputs in a cell, G is only approximately χ². The nominal rate therefore has to be checked.
    """
    _, chances = _numbered(law, outputs)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.multinomial(chances.expand(trials, -1), outputs, replacement=True, generator=generator)
    observed = torch.zeros(trials, len(chances), dtype=torch.float64).scatter_add_(1, drawn, drawn.double() * 0 + 1)
    g = 2 * torch.xlogy(observed, observed / (chances * outputs)).sum(1)
    freedom = torch.full_like(g, len(chances) - 1)
    return float((torch.special.gammaincc(freedom / 2, g / 2) < below).double().mean())


def _numbered(law: Law, outputs: int) -> tuple[dict[Context, int], Tensor]:
    """Return the number of each possible output's cell, and the probability of each cell."""
    cell_of = _cells(law, outputs)
    places = {cell: number for number, cell in enumerate(dict.fromkeys(cell_of.values()))}
    chances = torch.zeros(len(places), dtype=torch.float64)
    for output, cell in cell_of.items():
        chances[places[cell]] += law[output]
    return {output: places[cell] for output, cell in cell_of.items()}, chances


def _cells(law: Law, outputs: int) -> dict[Context, Context]:
    """Return each possible output's cell: the output, or its longest prefix that is expected often enough."""
    cell_of = {output: output for output, chance in law.items() if chance > 0}
    for length in range(max(map(len, law)), 0, -1):
        expected: dict[Context, float] = defaultdict(float)
        for output, cell in cell_of.items():
            expected[cell] += law[output] * outputs
        for output, cell in cell_of.items():
            if len(cell) == length and expected[cell] < OFTEN:
                cell_of[output] = cell[:-1]
    return cell_of
