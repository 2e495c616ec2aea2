"""By sampling, through the real `propose` and `verify`: the joint law of four tokens is the target's in every mode.

Each test draws 5,000 sessions with seeds 0..4,999 over 81 outcomes and must not reject at p = 1e-3. The seeds are
fixed, so the result repeats. The expected laws come from a restatement of the sampling rules that shares no code with
them.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specdec.engine.cpu.cpp_library import LibraryMissing
from specdec.engine.cpu.draw import load_draws
from specdec.rules import verification
from specdec.rules.padding import FlatDrafts
from specdec.rules.speculation import Mode
from specdec.sampling import distribution as sampling
from specdec.sampling.params import SamplingParams
from tests.conformance.g_test import g_test
from tests.conformance.sampled_chain import PROMPT, Service
from tests.conformance.table_models import TableModel, joint

SESSIONS = 5_000
LENGTH = 4
P_VALUE = 1e-3

PARAMS = {
    "T=1": SamplingParams(),
    "T=0.7": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(top_k=2),
    "top-p": SamplingParams(top_p=0.7),
    "min-p": SamplingParams(min_p=0.3),
    "penalties": SamplingParams(presence_penalty=0.8, frequency_penalty=0.4, repetition_penalty=1.3),
}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("mode", Mode)
def test_the_sampled_joint_law_is_the_targets(mode: Mode, params: SamplingParams) -> None:
    target, drafter = TableModel(3, seed=1), TableModel(3, seed=2)
    outputs = Service(mode, params, target, drafter).generate(SESSIONS, LENGTH)
    assert g_test(outputs, joint(target, params, PROMPT, LENGTH), 3) >= P_VALUE


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_the_hosts_operators_have_the_targets_law(
    mode: Mode, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        draws = load_draws()
    except LibraryMissing as missing:
        pytest.skip(str(missing))
    judged = list[Mode]()

    def judge(mode: Mode, p: Tensor, mass: Tensor, flat: FlatDrafts) -> tuple[Tensor, Tensor]:
        judged.append(mode)
        return draws.judge(p.float(), mass, *flat, mode is Mode.BLOCK)

    def distributions(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
        limits = [[each.temperature, each.top_k, each.top_p, each.min_p] for each in params]
        return draws.distributions(scores.float(), torch.tensor(limits, dtype=torch.float64))

    monkeypatch.setattr(verification, "judge_on_host", judge)
    monkeypatch.setattr(sampling, "distributions", distributions)
    target, drafter = TableModel(3, seed=1), TableModel(3, seed=2)
    outputs = Service(mode, params, target, drafter).generate(SESSIONS, LENGTH)
    assert g_test(outputs, joint(target, params, PROMPT, LENGTH), 3) >= P_VALUE
    assert set(judged) == {mode}


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
def test_temperature_zero_is_the_argmax_in_every_mode(mode: Mode) -> None:
    greedy = SamplingParams(temperature=0.0)
    target, drafter = TableModel(3, seed=1), TableModel(3, seed=2)
    (expected,) = set(Service(Mode.OFF, greedy, target, drafter).generate(1, 6))
    assert set(Service(mode, greedy, target, drafter).generate(200, 6)) == {expected}


def test_coupled_output_is_a_function_of_seed_and_target_alone() -> None:
    target, sessions = TableModel(4, seed=5), 300
    outputs = [
        Service(Mode.COUPLED, SamplingParams(), target, TableModel(4, seed), support=support).generate(sessions, 8)
        for seed, support in [(6, 4), (7, 1), (5, 4)]
    ]
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(set(outputs[0])) > 1
