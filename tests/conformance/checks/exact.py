"""Checks by enumeration, small enough to run against every planted bug."""

from collections.abc import Sequence

import torch

from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.speculation import Mode
from specdec.sampling import distribution as sampling
from specdec.sampling.distribution import History
from specdec.sampling.params import SamplingParams
from tests.conformance.automata import BUDGET, LOOP
from tests.conformance.checks.check import Check, exact
from tests.conformance.exact_chain import Drafter, Drawn, outcome, proposed, sample_law
from tests.conformance.exact_coupled import chances
from tests.conformance.exact_siblings import Node, drawn_with_replacement
from tests.conformance.exact_tree import TREES, Enumeration, Models, rule_of
from tests.conformance.lenient_law import published
from tests.conformance.table_models import Context, Tables, pair, reference
from tests.support.draft_laws import compress

LENIENCE = 0.5
PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.5, top_p=0.7),
    SamplingParams(temperature=1.7, top_k=3, min_p=0.2),
    SamplingParams(temperature=0.6, presence_penalty=0.9, frequency_penalty=0.5, repetition_penalty=1.4),
    SamplingParams(top_p=0.8, logit_bias={0: 3.0, 2: -2.0}),
    SamplingParams(allowed_token_ids=(0, 1, 3), banned_token_ids=(1,)),
    SamplingParams(bad_words=((0, 3, 1), (3, 3), (2,), (1, 1, 0))),
)
FOLLOWING = SamplingParams(grammar=LOOP)
BOUND = SamplingParams(grammar=BUDGET)


def joint_error(tables: Tables, mode: Mode, gamma: int, support: int = 3, drafter: Drafter | None = None) -> float:
    """Return the largest difference between the law of a round and the target's joint law."""
    law = outcome(tables, mode, drafter or proposed(tables, mode, support), gamma).law
    return float((law - tables.joint(gamma + 1)).abs().max())


def lookup(contexts: Sequence[Context]) -> list[list[Drawn]]:
    """Draft without sampling."""
    return [
        [Drawn((sum(context) + 1) % 3, 1.0, SparseProbs(torch.tensor([(sum(context) + 1) % 3]), torch.tensor([9])))]
        for context in contexts
    ]


def at_temperature_zero() -> float:
    """Return the error at temperature 0 in both ratio modes. The drafter has the target's parameters."""
    tables = pair(4, 1, SamplingParams(temperature=0.0))
    return max(joint_error(tables, mode, 2) for mode in (Mode.REJECTION, Mode.BLOCK))


def races() -> float:
    """Return the error of coupled mode's choice."""
    return max(float((chances(row) - row).abs().max()) for row in pair(4, 1).p([(), (1,)]))


def draws() -> float:
    """Return the error of `sample`, including rows where p has zeros."""
    p = pair(5, 1).p([(), (1,), (2, 3)])
    p[:, 0] = 0.0
    return float((sample_law(p) - p / p.sum(1, keepdim=True)).abs().max())


def restated() -> float:
    """Return the error of `probabilities` against its restatement, for logits of both signs."""
    worst = 0.0
    for params in PARAMS:
        for output in [(), (1, 1), (0, 3, 3)]:
            logits = pair(5, 7).target.logits((2, *output))
            p = sampling.probabilities(logits[None].clone(), [params], [History((2,), output)])[0]
            expected = torch.tensor(reference(logits, params, (2,), output), dtype=torch.float64)
            worst = max(worst, float((p - expected).abs().max()))
    return worst


def lenient() -> float:
    """Return the error of lenience against its published law."""
    tables = pair(3, 1)
    drafter = proposed(tables, Mode.REJECTION, 3)
    law = outcome(tables, Mode.REJECTION, drafter, 2, LENIENCE).law
    return float((law - published(tables, drafter, 2, LENIENCE)).abs().max())


def siblings() -> float:
    """Return the error at one position with two draws."""
    tables = pair(4, 1)
    p, q = tables.p([()])[0], compress(tables.q([()]), 4)[0]
    node = Node(rule_of(Siblings.WITH_REPLACEMENT), p, q, drawn_with_replacement(q, 2))
    return float((node.law() - p).abs().max())


def tree() -> float:
    """Return the error of a forked round whose siblings are drawn without replacement."""
    form = Siblings.WITHOUT_REPLACEMENT
    return Enumeration(form, form, TREES["one branch goes on"], Models(seed=1)).error()


CHECKS: tuple[Check, ...] = (
    exact("enumerated rejection", lambda: joint_error(pair(4, 1), Mode.REJECTION, 2)),
    exact("enumerated block", lambda: joint_error(pair(3, 1), Mode.BLOCK, 3)),
    exact("enumerated point mass", lambda: joint_error(pair(3, 1), Mode.REJECTION, 2, drafter=lookup)),
    exact("enumerated temperature 0", at_temperature_zero),
    exact("enumerated grammar", lambda: joint_error(pair(4, 1, FOLLOWING), Mode.REJECTION, 2)),
    exact("enumerated budget", lambda: joint_error(pair(4, 1, BOUND), Mode.REJECTION, 3)),
    exact("integrated coupling", races),
    exact("integrated sample", draws),
    exact("restated distribution", restated),
    exact("published lenience", lenient),
    exact("enumerated siblings", siblings),
    exact("enumerated tree", tree),
)
