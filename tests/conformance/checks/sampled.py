"""Checks by sampling in one process: many short generations through the real `propose` and `verify`."""

from collections.abc import Sequence

import torch

from specdec.rules.multidraft import Siblings
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.checks.check import Check, Kind, count, in_parts
from tests.conformance.g_test import g_test
from tests.conformance.sampled_chain import PROMPT, Service
from tests.conformance.sampled_trees import first_token_p_value, forest, two_drafters_p_value
from tests.conformance.table_models import Context, TableModel, joint

SESSIONS = 2_500
LENGTH = 4
P_VALUE = 1e-6
SHORT = (1, 2, 1, 0, 3)
"""Draft lengths by session and round. They produce many bonus tokens."""
PENALTIES = SamplingParams(presence_penalty=0.8, frequency_penalty=0.4, repetition_penalty=1.3)


class Flat(TableModel):
    """A model with one distribution after every context, which makes two draws from one number most visible."""

    def __init__(self, *probabilities: float) -> None:
        super().__init__(len(probabilities), seed=0)
        self._logits = torch.tensor(probabilities, dtype=torch.float64).log()

    def logits(self, context: Context) -> torch.Tensor:
        return self._logits


class Turns(TableModel):
    """A model whose distribution alternates with the position."""

    def __init__(self, *laws: Sequence[float]) -> None:
        super().__init__(len(laws[0]), seed=0)
        self._laws = [torch.tensor(law, dtype=torch.float64).log() for law in laws]

    def logits(self, context: Context) -> torch.Tensor:
        return self._laws[len(context) % len(self._laws)]


def p_value(service: Service, outputs: Sequence[Context]) -> float:
    """Return the p-value of the first tokens of sessions."""
    return g_test(outputs, joint(service.target, service.params, PROMPT, LENGTH), service.target.vocab_size)


def flat(mode: Mode, **changes: object) -> Service:
    """Return a service with a drafter whose third token is cut off by a support of two."""
    return Service(mode, SamplingParams(), Flat(0.5, 0.3, 0.2), Flat(0.3, 0.3, 0.4), **changes)  # type: ignore[arg-type]


def rejecting() -> Service:
    """Return block verification that often rejects a whole draft.

    The next round then drafts the same positions again.
    """
    return Service(Mode.BLOCK, SamplingParams(), Flat(0.5, 0.5), Flat(0.8, 0.2), gammas=(3,))


def tables(params: SamplingParams) -> Service:
    """Return a service whose models have a different distribution in every context."""
    return Service(Mode.REJECTION, params, TableModel(3, seed=1), TableModel(3, seed=2))


def other_outputs() -> float:
    """Count coupled outputs that change with the drafter or γ."""
    target, found = TableModel(4, seed=5), []
    for seed, support, gammas in [(6, 4, (3, 1, 2)), (7, 1, (2,)), (5, 4, (1, 3))]:
        service = Service(Mode.COUPLED, SamplingParams(), target, TableModel(4, seed), support=support, gammas=gammas)
        found.append(service.generate(100, 8))
    return sum(len(set(outputs)) > 1 for outputs in zip(*found, strict=True))


def other_company() -> float:
    """Count outputs of 8 sessions alone that differ from theirs in a batch of 64."""
    service = tables(SamplingParams())
    company = service.generate(64, LENGTH)
    return sum(service.generate(1, LENGTH, first_seed=seed) != [company[seed]] for seed in range(8))


def _sampled(name: str, service: Service, sessions: int = SESSIONS) -> Check:
    def sample(numbers: range) -> list[Context]:
        return service.generate(len(numbers), LENGTH, numbers.start)

    def value(outputs: Sequence[Context]) -> float:
        return p_value(service, outputs)

    return Check(name, Kind.P_VALUE, P_VALUE, lambda: value(sample(range(sessions))), in_parts(sessions, sample, value))


CHECKS: tuple[Check, ...] = (
    _sampled("sampled rejection", flat(Mode.REJECTION, gammas=SHORT)),
    _sampled("sampled coupling", flat(Mode.COUPLED)),
    _sampled("sampled block, rejecting", rejecting(), 5 * SESSIONS // 2),
    _sampled("sampled penalties", tables(PENALTIES), 1_200),
    _sampled("sampled top-k", tables(SamplingParams(top_k=2)), 500),
    Check("sampled siblings", Kind.P_VALUE, P_VALUE, first_token_p_value),
    Check("sampled trees", Kind.P_VALUE, P_VALUE, lambda: forest(Siblings.WITHOUT_REPLACEMENT).p_value()),
    Check("sampled trees of two drafters", Kind.P_VALUE, P_VALUE, two_drafters_p_value),
    count("same tokens for any drafter", other_outputs),
    count("same tokens in any company", other_company),
)
