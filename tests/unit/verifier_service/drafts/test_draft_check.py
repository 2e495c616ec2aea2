"""A drafter's message reaches a pass only if the pass can judge it, in any mode, as chain, tree or pushed chain."""

from collections.abc import Callable

import pytest
import torch

from specdec.errors import RequestError
from specdec.rules.draft import MAX_WEIGHT, Draft, SparseProbs
from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode, Speculation
from specdec.trees.tree import ROOT, Tree, TreeDraft
from specdec.wire.draft import DraftTokens
from specdec.wire.session import TreePlan
from tests.unit.verifier_service.drafts.drafts_scene import PATIENT, PROMPT
from tests.unit.verifier_service.verifier_fakes import make_call, make_link
from verifier_service.drafts.draft_buffer import MOST_DRAFTS
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.session_drafts import RemoteDrafts

VOCAB = 10


def law(*ids: int, weights: tuple[int, ...] = ()) -> SparseProbs:
    return SparseProbs(torch.tensor(ids), torch.tensor(weights or (MAX_WEIGHT,) * len(ids)))


LAWS = {
    "a support out of the vocabulary": law(4, VOCAB),
    "a doubled id": law(4, 4),
    "descending ids": law(5, 4),
    "a weight of zero": law(4, 5, weights=(0, 1)),
    "no weights at all": law(4, weights=(0,)),
    "an empty support": SparseProbs(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64)),
    "a support without the token": law(5),
}
CHAINS: dict[str, Callable[[], Draft]] = {
    **{name: (lambda bad=bad: Draft((4, 4), (law(4), bad))) for name, bad in LAWS.items()},
    "a token without its distribution": lambda: Draft((4, 4), (law(4),)),
}
TOKENS: dict[str, Draft] = {
    "a token out of the vocabulary": Draft((4, VOCAB), (law(4), law(VOCAB))),
    "a huge token": Draft((2**31 - 1,), (law(2**31 - 1),)),
    "a long chain": Draft((4,) * (MOST_DRAFTS + 1), (law(4),) * (MOST_DRAFTS + 1)),
}


def session(mode: Mode, plan: TreePlan | None = None) -> RemoteDrafts:
    link = make_link()
    link.connected("small", 0.001)
    call = make_call(tokens=PROMPT, speculation=Speculation(mode))
    drafts = RemoteDrafts(call, 20, VOCAB, DrafterPool([link]), PATIENT, plan=plan)
    drafts.begin(4)
    return drafts


def message(draft: Draft | TreeDraft, ahead: tuple[int, ...] = ()) -> DraftTokens:
    prefix = (*PROMPT, *ahead)
    return DraftTokens("s", 1, len(prefix), PrefixHash(prefix).value, draft)


def refuse(drafts: RemoteDrafts, sent: DraftTokens) -> None:
    with pytest.raises(RequestError):
        drafts.drafted(sent)
    assert len(drafts._buffer) == 0
    drafts._buffer.advance((4, 5), 0)
    assert len(drafts._buffer) == 0, "nothing was kept for an outcome"


@pytest.mark.parametrize("ahead", [(), (4, 5)], ids=["at once", "pushed"])
@pytest.mark.parametrize("kind", [*CHAINS, *TOKENS])
@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_a_chain_that_cannot_be_judged_is_refused(mode: Mode, kind: str, ahead: tuple[int, ...]) -> None:
    draft = TOKENS[kind] if kind in TOKENS else CHAINS[kind]()
    refuse(session(mode), message(draft, ahead))


@pytest.mark.parametrize("ahead", [(), (4, 5)], ids=["at once", "pushed"])
@pytest.mark.parametrize("kind", [*TOKENS])
def test_tokens_are_checked_in_mode_coupled(kind: str, ahead: tuple[int, ...]) -> None:
    refuse(session(Mode.COUPLED), message(TOKENS[kind], ahead))


@pytest.mark.parametrize("kind", [*CHAINS])
async def test_mode_coupled_drops_what_it_does_not_need(kind: str) -> None:
    drafts = session(Mode.COUPLED)
    drafts.drafted(message(CHAINS[kind]()))
    taken = drafts._buffer.take(4)
    assert (taken.tokens, taken.probs) == ((4, 4), ())


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("kind", [*LAWS])
def test_a_tree_that_cannot_be_judged_is_refused(kind: str, replacement: bool) -> None:
    tree = TreeDraft(Tree((ROOT, 0, ROOT)), (4, 4, 5), (law(4, 5), LAWS[kind], None, None))
    refuse(session(Mode.REJECTION, TreePlan(2, 2, replacement, 0)), message(tree))
    chain = Draft((4,), (LAWS[kind],))
    refuse(session(Mode.REJECTION, TreePlan(2, 2, replacement, 0)), message(chain))


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.COUPLED])
def test_a_token_of_a_tree_is_in_the_vocabulary(mode: Mode) -> None:
    tree = TreeDraft(Tree((ROOT, 0)), (4, VOCAB), (law(4), law(VOCAB), None))
    refuse(session(mode, TreePlan(2, 2, False, 0)), message(tree))


def test_a_tree_is_no_answer_to_who_asked_for_a_chain() -> None:
    tree = TreeDraft(Tree((ROOT, 0)), (4, 5), (law(4), law(5), None))
    refuse(session(Mode.REJECTION), message(tree))
