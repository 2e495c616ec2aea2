"""Drafts of a head serve the target's law: joint G-tests of four tokens through the real services.

The head drafts for five of the eight ids, and its weights are random, so drafts are accepted and rejected. Seeds are
fixed. A cell is 250 sessions and fails below p = 1e-6. Two planted bugs of q̂ must fail.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.draft import SparseProbs
from specdec.rules.speculation import Mode
from tests.conformance.g_test import p_value
from tests.conformance.headed_pair import DRAFT_IDS, LENGTH, PARAMS, law_of
from tests.conformance.notes import Note
from tests.conformance.served_head import DRAFTING, P_VALUE, SESSIONS, Cell, Served, run, serve
from tests.conformance.small_pair import VOCAB_SIZE
from verifier_service.backends import head_drafter

pytestmark = pytest.mark.integration

TITLE = f"G-tests of a draft head: {SESSIONS} joint sequences of {LENGTH} tokens a cell"
CELLS = [
    *(Cell(mode) for mode in DRAFTING),
    *(Cell(Mode.REJECTION, params) for params in PARAMS if params != "T=1"),
    *(Cell(mode, params) for mode in DRAFTING[1:] for params in ("top-p", "penalties", "grammar")),
]


@pytest.fixture(scope="module")
def served() -> Served:
    return serve(CELLS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_joint_law_is_the_targets(cell: Cell, served: Served, note: Note) -> None:
    law = law_of(cell.params)
    if cell.params == "T=0":
        assert {done.tokens for done in served[cell]} == {max(law, key=lambda output: law[output])}
        return
    found = p_value([done.tokens for done in served[cell]], law)
    note(TITLE, f"{cell!s:36} p = {found:.2g}")
    assert found >= P_VALUE


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.params != "T=0"], ids=str)
def test_drafts_of_the_head_are_kept_or_not(cell: Cell, served: Served) -> None:
    rounds = [response for done in served[cell] for response in done.rounds]
    origins = Counter(origin for response in rounds for origin in response.origins)
    assert origins[common.TOKEN_ORIGIN_ACCEPTED] > SESSIONS / 20
    assert origins[common.TOKEN_ORIGIN_RECOVERED] > SESSIONS / 20
    assert {response.drafter for response in rounds} - {"", "grammar"} == {"head"}
    drafts = b"".join(response.draft_tokens for response in rounds if response.drafter == "head")
    assert set(np.frombuffer(drafts, "<i4").tolist()) <= set(DRAFT_IDS.tolist())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("params", ["T=1", "penalties", "grammar"])
def test_coupled_tokens_of_a_seed_are_those_without_the_head(params: str, served: Served) -> None:
    cell = Cell(Mode.COUPLED, params)
    tokens = [done.tokens for done in served[cell]]
    assert [done.tokens for done in serve([cell])[cell]] == tokens
    plain = asyncio.run(run(cell.asks(), with_head=False))
    assert [done.tokens for done in plain] == tokens
    assert {response.drafter for done in plain for response in done.rounds} <= {"", "grammar"}


def over_all_ids(patch: pytest.MonkeyPatch) -> None:
    """Report a q̂ over the whole vocabulary for a token that was drawn from the draft ids."""
    whole = SparseProbs(torch.arange(VOCAB_SIZE), torch.full((VOCAB_SIZE,), 9000))
    made = head_drafter.propose_each
    patch.setattr(head_drafter, "propose_each", lambda *a, **b: [(token, whole) for token, _ in made(*a, **b)])


def of_other_ids(patch: pytest.MonkeyPatch) -> None:
    """Report the probabilities of q̂ for other ids than they belong to."""
    made = head_drafter.propose_each

    def changed(*given: Any, **named: Any) -> list[tuple[int, SparseProbs | None]]:
        return [
            (token, probs and SparseProbs(probs.ids, probs.weights.flip(0))) for token, probs in made(*given, **named)
        ]

    patch.setattr(head_drafter, "propose_each", changed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", [over_all_ids, of_other_ids])
def test_a_planted_bug_fails(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    cell = Cell(Mode.REJECTION)
    assert p_value([done.tokens for done in serve([cell])[cell]], law_of("T=1")) < P_VALUE
