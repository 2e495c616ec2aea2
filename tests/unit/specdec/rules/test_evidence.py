"""The evidence of a verdict agrees with the verdict."""

import pytest
import torch
from torch import Tensor

from specdec.rules.draft import NO_DRAFT
from specdec.rules.evidence import evidence
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from tests.unit.specdec.rules.random_drafts import distributions, drafted

SEEDS = range(60)


def like(seed: int) -> Tensor:
    """Return target distributions near those from which a draft of 4 tokens is drawn."""
    near = torch.cat([distributions(4, 77 + seed), distributions(1, seed)])
    return 0.4 * near + 0.6 * distributions(5, seed)


@pytest.mark.parametrize("lenience", [1.0, 0.5])
def test_rejection_keeps_a_draft_up_to_the_first_u_not_below_its_threshold(lenience: float) -> None:
    kept = []
    for seed in SEEDS:
        draft, p = drafted(Mode.REJECTION, 4, seed), like(seed)
        (verdict,) = verify(Mode.REJECTION, p, [draft], [seed], [10], [lenience])
        found = evidence(Mode.REJECTION, p, draft, seed, 10, lenience)
        below = [token.u < token.threshold for token in found if token.u is not None and token.threshold is not None]
        assert verdict.accepted == [*below, False].index(False)
        assert below == [(token.u or 0.0) * lenience * (token.q or 0.0) < token.p for token in found]
        kept.append(verdict.accepted)
    assert len(set(kept)) > 2


def test_the_block_rule_keeps_a_draft_up_to_the_last_u_below_its_height() -> None:
    kept = []
    for seed in SEEDS:
        draft, p = drafted(Mode.BLOCK, 4, seed), like(seed)
        (verdict,) = verify(Mode.BLOCK, p, [draft], [seed], [10])
        found = evidence(Mode.BLOCK, p, draft, seed, 10)
        below = [place for place, token in enumerate(found, 1) if (token.u or 0.0) < (token.threshold or 0.0)]
        assert verdict.accepted == max(below, default=0)
        kept.append(verdict.accepted)
    assert len(set(kept)) > 2


def test_the_probabilities_are_those_of_target_and_draft() -> None:
    draft, p = drafted(Mode.REJECTION, 3, seed=5), distributions(4, 5, dtype=torch.float64)
    for step, token in enumerate(evidence(Mode.REJECTION, p, draft, 5, 10)):
        law = draft.probs[step]
        weight = law.weights[law.ids == draft.tokens[step]]
        assert token.p == pytest.approx(float(p[step, draft.tokens[step]]), rel=1e-12)
        assert token.q == pytest.approx(int(weight) / int(law.weights.sum()), rel=1e-12)


def test_the_coupled_rule_compares_no_ratio() -> None:
    draft, p = drafted(Mode.COUPLED, 3, seed=5), distributions(4, 5)
    found = evidence(Mode.COUPLED, p, draft, 5, 10)
    assert [token.p for token in found] == pytest.approx([float(p[i, draft.tokens[i]]) for i in range(3)], rel=1e-6)
    assert {(token.q, token.u, token.threshold) for token in found} == {(None, None, None)}


def test_a_row_without_a_distribution_gives_zero() -> None:
    draft, p = drafted(Mode.REJECTION, 2, seed=5), distributions(3, 5)
    p[1] = torch.nan
    assert [token.p > 0 for token in evidence(Mode.REJECTION, p, draft, 5, 10)] == [True, False]
    assert evidence(Mode.REJECTION, p[:1], NO_DRAFT, 5, 10) == ()
