"""Lenience at temperature 0 through the running services, where the published rule is deterministic.

A draft x is kept when p(x) ≥ ℓ·max p (Leviathan et al., arXiv 2211.17192, §A.5). A rejected draft is replaced by the
argmax.
"""

import random

import pytest
import torch

from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.plain_model import PlainModel
from tests.conformance.served_pair import Ask, generate, pair
from tests.conformance.small_pair import END, VOCAB_SIZE, small
from tests.conformance.table_models import Context

pytestmark = pytest.mark.integration

GREEDY = SamplingParams(temperature=0.0)
GAMMA = 3
LENGTH = 12
PROMPTS = [tuple(random.Random(seed).choices(range(1, VOCAB_SIZE), k=5)) for seed in range(40)]


@pytest.mark.parametrize("lenience", [0.5, 0.3])
async def test_lenient_greedy_tokens_are_those_of_the_published_rule(lenience: float) -> None:
    asks = [Ask(Mode.REJECTION, GREEDY, GAMMA, prompt, LENGTH, (END,), lenience=lenience) for prompt in PROMPTS]
    async with pair(small().target, small().drafter) as client:
        outputs = [done.tokens for done in await generate(client, asks, at_once=16)]
    assert outputs == [_restated(prompt, lenience) for prompt in PROMPTS]
    assert outputs != [_restated(prompt, 1.0) for prompt in PROMPTS], "lenience changed nothing, so nothing is shown"


def _restated(prompt: Context, lenience: float) -> Context:
    output: Context = ()
    while len(output) < LENGTH and END not in output:
        output += _round(prompt + output, min(GAMMA, LENGTH - len(output) - 1), lenience)
    return output[: output.index(END) + 1] if END in output else output


def _round(context: Context, gamma: int, lenience: float) -> Context:
    kept: Context = ()
    for _ in range(gamma):
        p = torch.softmax(_logits(small().plain, context + kept), -1)
        draft = int(_logits(small().plain_drafter, context + kept).argmax())
        if float(p[draft]) < lenience * float(p.max()):
            return (*kept, int(p.argmax()))
        kept += (draft,)
    return (*kept, int(_logits(small().plain, context + kept).argmax()))


def _logits(model: PlainModel, context: Context) -> torch.Tensor:
    return model.logits([context])[0]
