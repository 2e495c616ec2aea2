"""A head that drafts two tokens for the first position serves the target's law: joint G-tests as for chains.

The controller chooses such drafts by measured times, so here they are forced. Two planted bugs must fail.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.speculation import Mode
from tests.conformance.g_test import p_value
from tests.conformance.headed_pair import PARAMS, law_of
from tests.conformance.notes import Note
from tests.conformance.served_head import GAMMAS, P_VALUE, SESSIONS, Cell, Served, serve
from verifier_service.backends import head_drafter
from verifier_service.drafts.sources import DraftSources
from verifier_service.speculation.controller import BatchSpeculation

pytestmark = pytest.mark.integration

TITLE = f"G-tests of a draft head with two drafts for the first position: {SESSIONS} sequences a cell"
CELLS = [
    *(Cell(Mode.REJECTION, params) for params in PARAMS if params != "grammar"),
    *(Cell(Mode.COUPLED, params) for params in ("T=1", "top-p", "penalties")),
]


def serve_forked(cells: Sequence[Cell]) -> Served:
    """Serve the cells' sessions, each draft with a second token for its first position."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DraftSources, "_forks", lambda *_: True)
        patch.setattr(BatchSpeculation, "second_pays", lambda *_: True)
        return serve(cells)


@pytest.fixture(scope="module")
def served() -> Served:
    return serve_forked(CELLS)


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
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_rounds_have_two_drafts_of_which_one_is_kept_or_none(cell: Cell, served: Served) -> None:
    short = [done for index, done in enumerate(served[cell]) if GAMMAS[index % len(GAMMAS)] == 1]
    rounds = [response for done in short for response in done.rounds if response.drafter == "head"]
    pairs = [response.accepted for response in rounds if len(response.draft_tokens) == 2 * 4]
    assert len(pairs) > len(rounds) / 2  # the others have a q̂ of one id
    assert {1} <= set(pairs) <= {0, 1}


@pytest.mark.timeout(900)
def test_coupled_tokens_of_a_seed_are_those_of_chains(served: Served) -> None:
    cell = Cell(Mode.COUPLED)
    assert [done.tokens for done in served[cell]] == [done.tokens for done in serve([cell])[cell]]


def most_likely(patch: pytest.MonkeyPatch) -> None:
    """Draft the two most likely ids, as if they had been drawn from q̂."""
    made = head_drafter.propose_siblings

    def changed(siblings: Siblings, *given: object) -> tuple[list[list[int]], list[SparseProbs]]:
        return made(Siblings.DETERMINISTIC, *given)[0], made(siblings, *given)[1]  # type: ignore[arg-type]

    patch.setattr(head_drafter, "propose_siblings", changed)


def of_other_ids(patch: pytest.MonkeyPatch) -> None:
    """Report the probabilities of q̂ for other ids than they belong to."""
    made = head_drafter.propose_siblings

    def changed(siblings: Siblings, q: Tensor, *given: object) -> tuple[list[list[int]], list[SparseProbs]]:
        families, laws = made(siblings, q, *given)  # type: ignore[arg-type]
        return families, [SparseProbs(law.ids, torch.flip(law.weights, (0,))) for law in laws]

    patch.setattr(head_drafter, "propose_siblings", changed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", [most_likely, of_other_ids])
def test_a_planted_bug_fails(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    cell = Cell(Mode.REJECTION)
    assert p_value([done.tokens for done in serve_forked([cell])[cell]], law_of("T=1")) < P_VALUE
