"""A drafter whose q̂ is not cut to a few ids serves the target's law: the support is the whole vocabulary."""

from dataclasses import replace

import pytest

from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.g_test import p_value
from tests.conformance.served_pair import Ask, generate, pair
from tests.conformance.small_pair import END, PROMPT, VOCAB_SIZE, small

pytestmark = pytest.mark.integration

SESSIONS = 250
P_VALUE = 1e-6
"""Bound for each of two cells, G-tests of 250 joint outputs. Sound code fails in 2e-6 of all runs."""
LENGTH = 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK], ids=str)
async def test_the_joint_law_is_the_targets(mode: Mode) -> None:
    params = SamplingParams(temperature=0.9)
    asks = [
        Ask(mode, replace(params, seed=seed), (3, 1, 2)[seed % 3], PROMPT, LENGTH, (END,)) for seed in range(SESSIONS)
    ]
    async with pair(small().target, small().drafter, support=VOCAB_SIZE, ahead=2) as client:
        served = await generate(client, asks, at_once=SESSIONS)
    rounds = [response for done in served for response in done.rounds]
    assert sum(response.accepted for response in rounds) > SESSIONS / 2
    assert not any(response.fallback_reason for response in rounds), "no draft was late"
    assert p_value([done.tokens for done in served], small().plain.law(params, PROMPT, LENGTH, END)) >= P_VALUE
