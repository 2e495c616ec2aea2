"""By enumeration: lenience has its published law (arXiv 2211.17192, §A.5), up to rounding, and keeps its bound.

Lenience is the only mode that is not exact. These tests show how inexact it is, and that ℓ = 1 is exact.
"""

import pytest

from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.exact_chain import outcome, proposed
from tests.conformance.lenient_law import published
from tests.conformance.table_models import pair

LENIENCES = [1.0, 0.7, 0.3, 0.05]


@pytest.mark.parametrize("lenience", LENIENCES)
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=2)], ids=["T=1", "top-k"])
def test_the_joint_law_is_the_published_one(lenience: float, params: SamplingParams) -> None:
    tables = pair(3, 1, params)
    drafter = proposed(tables, Mode.REJECTION, 3)
    law = outcome(tables, Mode.REJECTION, drafter, 3, lenience).law
    assert float((law - published(tables, drafter, 3, lenience)).abs().max()) <= 1e-12
    if lenience == 1.0:
        assert float((law - tables.joint(4)).abs().max()) <= 1e-12


@pytest.mark.parametrize("lenience", LENIENCES)
def test_no_sequence_gets_more_than_p_over_lenience_for_each_draft(lenience: float) -> None:
    tables = pair(3, 1)
    law = outcome(tables, Mode.REJECTION, proposed(tables, Mode.REJECTION, 3), 2, lenience).law
    assert bool((law <= tables.joint(3) / lenience**2 + 1e-12).all())


def test_more_lenience_is_more_accepted_and_further_from_the_target() -> None:
    tables = pair(3, 1)
    found = [outcome(tables, Mode.REJECTION, proposed(tables, Mode.REJECTION, 3), 2, each) for each in LENIENCES]
    distances = [float((each.law - tables.joint(3)).abs().sum()) / 2 for each in found]
    assert sorted(distances) == distances
    assert sorted(each.accepted for each in found) == [each.accepted for each in found]
    assert distances[-1] > 0.05
