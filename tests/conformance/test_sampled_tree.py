"""By sampling, through the real `propose_siblings` and `verify_tree`: the joint law over rounds of trees is exact.

Each test draws 3,000 sessions with seeds 0..2,999 over 81 outcomes and must not reject at p = 1e-3. The seeds are
fixed, so the result repeats.
"""

import pytest
import torch

from specdec.engine.cpu.draw import draw_by_operator
from specdec.rules.multidraft import Siblings
from specdec.sampling.params import SamplingParams
from tests.conformance.sampled_trees import first_token_p_value, forest

P_VALUE = 1e-3


@pytest.mark.parametrize("siblings", Siblings, ids=str)
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.8, presence_penalty=0.8)], ids=["T=1", "penalties"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_sampled_joint_law_of_trees_is_the_targets(
    siblings: Siblings, params: SamplingParams, dtype: torch.dtype
) -> None:
    draw_by_operator()
    assert forest(siblings, params=params, dtype=dtype).p_value() >= P_VALUE


def test_the_first_of_two_siblings_kept_has_the_targets_law() -> None:
    assert first_token_p_value() >= P_VALUE
