"""By integration over the noise: coupled mode's joint law is the target's for every possible draft, up to rounding.

The noise is one standard exponential for each position and id. It has infinitely many values, so it is integrated in
two steps. At one position, id i wins against j iff eⱼ > sᵢⱼ·eᵢ, and bisection reads the slope sᵢⱼ from the real
decision. Then P(i wins) = ∫ e⁻ˣ Πⱼ e^(-sᵢⱼx) dx = 1 / Σⱼ sᵢⱼ with sᵢᵢ = 1. Over several positions the noises are
independent. The real `verify` gets every cell "these ids win" with every draft. It must emit exactly those ids, up to
and including the first one that differs from the draft. A draft's knowledge of the noise then does not matter, and the
probability of the cell is the product of the probabilities at its positions.
"""

from collections import defaultdict
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from specdec.rules.draft import Draft
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from specdec.sampling.params import SamplingParams
from tests.conformance.automata import BUDGET, LOOP
from tests.conformance.exact_chain import completed
from tests.conformance.exact_coupled import chances, noise
from tests.conformance.table_models import Context, contexts, pair

VOCAB = 3
GAMMA = 3
SURE = 1e-30
"""Noise at which an id of any probability wins against noise of 1."""
PARAMS = {
    "T=1": SamplingParams(),
    "top-k": SamplingParams(top_k=2),
    "penalties": SamplingParams(presence_penalty=0.9),
    "T=0": SamplingParams(temperature=0.0),
    "bad words": SamplingParams(bad_words=((0, 1), (2, 2), (1, 0, 2))),
    "grammar": SamplingParams(grammar=LOOP),
    "budget": SamplingParams(grammar=BUDGET),
}


@pytest.mark.parametrize("own", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_the_winner_of_a_race_has_the_law_of_p(params: SamplingParams, own: float) -> None:
    """Test several noises of the winner, since the integral assumes slopes that do not depend on it."""
    for row in pair(5, 1, params).p([(0,), (1, 2)]):
        assert float((chances(row, own) - row).abs().max()) <= 1e-12


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_the_joint_law_is_the_targets_for_every_draft(params: SamplingParams) -> None:
    tables = pair(VOCAB, 1, params)
    cells = list(contexts(VOCAB, GAMMA + 1))
    table = torch.ones(len(cells), GAMMA + 1, VOCAB, dtype=torch.float64)
    table.scatter_(2, torch.tensor(cells)[:, :, None], SURE)
    for draft in [*product(range(VOCAB), repeat=GAMMA), ()]:
        rows = tables.p([draft[:step] for step in range(len(draft) + 1)])
        with noise(table):
            verdicts = verify(
                Mode.COUPLED,
                rows.repeat(len(cells), 1),
                [Draft(draft)] * len(cells),
                range(len(cells)),
                [0] * len(cells),
            )
        committed = {verdict.tokens for verdict in verdicts}
        share: dict[Context, float] = defaultdict(float)
        for tokens in committed:
            share[tokens] = chance_of(tokens, rows)
        for cell, verdict in zip(cells, verdicts, strict=True):
            possible = all(rows[step, token] > 0 for step, token in enumerate(cell[: len(verdict.tokens)]))
            assert not possible or verdict.tokens == cell[: agreeing(draft, cell) + 1]
        assert float((completed(share, tables, GAMMA + 1) - tables.joint(GAMMA + 1)).abs().max()) <= 1e-12


def chance_of(tokens: Context, rows: Tensor) -> float:
    """Return the probability of the noise cell in which these tokens are emitted, from the measured slopes."""
    chance = 1.0
    for token, row in zip(tokens, rows, strict=False):
        chance *= float(integrated(tuple(row.tolist()))[token])
    return chance


@cache
def integrated(row: tuple[float, ...]) -> Tensor:
    """Return `chances` of a row."""
    return chances(torch.tensor(row, dtype=torch.float64))


def agreeing(draft: Context, cell: Context) -> int:
    """Count the leading drafts that equal the winning ids."""
    return next((step for step, token in enumerate(draft) if token != cell[step]), len(draft))
