"""Results computed from logits are the same on every device, without tensors of the host among the device's."""

import pytest
import torch

from specdec.rules.draft import SparseProbs
from specdec.rules.lenience import lenient_greedy
from specdec.rules.multidraft import Siblings
from specdec.rules.proposal import propose, propose_siblings
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, probabilities, sample
from specdec.sampling.params import SamplingParams
from specdec.sampling.scoring import score
from tests.unit.specdec.rules.random_drafts import DRAFTING, drafted

VOCAB, ROWS = 320, 6
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.02),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={3: 2.0}),
    SamplingParams(allowed_token_ids=(1, 5, 9), banned_token_ids=(5,)),
    SamplingParams(min_tokens=9, end_token_ids=(0,), top_p=0.999),
    SamplingParams(),
]
HISTORIES = [History((1, 2, 3), (4, 4, 5))] * ROWS
SEEDS, POSITIONS = list(range(ROWS)), [7] * ROWS


def _logits() -> torch.Tensor:
    return 3 * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(1))


def test_distributions_and_draws(device: torch.device) -> None:
    here, there = (probabilities(logits, PARAMS, HISTORIES) for logits in (_logits(), _logits().to(device)))
    assert there.device.type == device.type
    torch.testing.assert_close(there.cpu(), here)
    u = torch.linspace(0, 0.99, ROWS, dtype=torch.float64)
    assert sample(there, u.to(device)).tolist() == sample(here, u).tolist()


@pytest.mark.parametrize("support", [16, VOCAB])
@pytest.mark.parametrize("mode", DRAFTING)
def test_proposals(mode: Mode, support: int, device: torch.device) -> None:
    q = probabilities(_logits(), PARAMS, HISTORIES).double()
    here, there = (propose(mode, each, SEEDS, POSITIONS, support, POSITIONS) for each in (q, q.to(device)))
    assert (there[0], _rows(there[1])) == (here[0], _rows(here[1]))


@pytest.mark.parametrize("siblings", Siblings)
def test_siblings(siblings: Siblings, device: torch.device) -> None:
    q = probabilities(_logits(), PARAMS, HISTORIES).double()
    here, there = (propose_siblings(siblings, each, SEEDS, POSITIONS, 16, range(3)) for each in (q, q.to(device)))
    assert (there[0], _rows(there[1])) == (here[0], _rows(here[1]))


def test_lenience_and_scores(device: torch.device) -> None:
    drafts, logits = [drafted(Mode.REJECTION, 2, seed=seed) for seed in (1, 2)], _logits()
    greedy = [PARAMS[0]] * ROWS
    laws = []
    for each in (logits, logits.to(device)):
        p = probabilities(each, greedy, HISTORIES)
        laws.append(lenient_greedy(p, each, greedy, HISTORIES, drafts, [0.01, 0.01]))
    assert torch.equal(laws[1].cpu(), laws[0])
    tokens = list(range(ROWS))
    assert score(logits.to(device), tokens, 3) == score(logits, tokens, 3)


def _rows(probs: list[SparseProbs]) -> list[tuple[list[int], list[int]]]:
    return [(row.ids.tolist(), row.weights.tolist()) for row in probs]
