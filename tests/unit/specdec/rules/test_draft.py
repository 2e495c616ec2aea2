"""Value types of a round."""

import pytest
import torch

from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs, Verdict
from specdec.rules.speculation import Origin


@pytest.mark.parametrize(
    ("verdict", "origins"),
    [
        (Verdict((7,), accepted=0, drafted=0), [Origin.PLAIN]),
        (Verdict((7,), accepted=0, drafted=3), [Origin.RECOVERED]),
        (Verdict((7, 8), accepted=1, drafted=3), [Origin.ACCEPTED, Origin.RECOVERED]),
        (Verdict((7, 8, 9), accepted=2, drafted=2), [Origin.ACCEPTED, Origin.ACCEPTED, Origin.BONUS]),
    ],
)
def test_every_committed_token_has_its_origin(verdict: Verdict, origins: list[Origin]) -> None:
    assert list(verdict.origins) == origins


def test_a_cut_draft_keeps_tokens_and_distributions_together() -> None:
    probs = tuple(SparseProbs(torch.tensor([token]), torch.tensor([1])) for token in (4, 5, 6))
    cut = Draft((4, 5, 6), probs).cut(2)
    assert cut.tokens == (4, 5)
    assert cut.probs == probs[:2]


def test_a_draft_without_distributions_can_be_cut() -> None:
    assert Draft((4, 5, 6)).cut(1).tokens == (4,)
    assert Draft((4, 5)).cut(9).tokens == (4, 5)
    assert NO_DRAFT.cut(3).tokens == ()
