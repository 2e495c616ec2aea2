"""Chains end after a kept token of which the drafter is unsure, or less sure than before."""

from dataclasses import replace

from drafter_service.sessions.draft_session import ChainLength, DraftSession
from specdec.planning.certainty import Certainty
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.draft import Draft, DraftStep
from specdec.rules.prefix import PrefixHash
from specdec.wire.session import DraftEnd
from tests.support.drafter_fakes import OPEN, commit

EGAG = GammaPolicy(PolicyKind.EGAG, 1, 8, 0.5)
SURE, TORN = Certainty(0.0, 0.9), Certainty(1.0, 0.1)


def _ends(length: ChainLength, drafted: int, certainty: Certainty) -> bool:
    return length.ends(drafted, certainty, length.step(8, certainty))


def _drafted(length: ChainLength, certainty: Certainty) -> int:
    return next(count for count in range(1, 99) if _ends(length, count, certainty))


def test_egag_drafts_most_where_the_drafter_is_sure_and_least_where_not() -> None:
    assert _drafted(ChainLength(EGAG), SURE) == 8
    assert _drafted(ChainLength(EGAG), TORN) == 1
    assert _drafted(ChainLength(EGAG), Certainty(0.5, 0.5)) == 4


def test_the_average_goes_on_from_chain_to_chain() -> None:
    length = ChainLength(EGAG)
    _drafted(length, SURE)
    assert not _ends(length, 1, TORN)
    assert _ends(length, 3, TORN)


def test_without_an_average_each_draft_counts_alone() -> None:
    length = ChainLength(replace(EGAG, ema=0.0))
    _drafted(length, SURE)
    assert _ends(length, 1, TORN)


def test_each_draft_travels_with_its_entropy_and_the_gamma_after_it() -> None:
    session = DraftSession("1/s", replace(OPEN, gamma=8, policy=EGAG), 64)
    session.extend(4, None, SURE)
    session.extend(5, None, None)
    session.extend(6, None, TORN)
    drafts = session.take_unsent()
    assert drafts is not None
    assert isinstance(drafts.draft, Draft)
    assert drafts.draft.steps == (DraftStep(0.0, 8), None, DraftStep(1.0, 4))


def test_without_egag_no_entropy_travels() -> None:
    session = DraftSession("1/s", replace(OPEN, policy=GammaPolicy(min_confidence=0.05)), 64)
    session.extend(4, None, SURE)
    drafts = session.take_unsent()
    assert drafts is not None
    assert isinstance(drafts.draft, Draft)
    assert drafts.draft.steps == ()


def test_a_chain_ends_after_the_first_token_of_low_confidence() -> None:
    length = ChainLength(GammaPolicy(min_confidence=0.3))
    assert not _ends(length, 1, SURE)
    assert _ends(length, 2, TORN)


def test_the_token_that_ends_a_chain_is_part_of_it_and_the_end_is_told() -> None:
    session = DraftSession("1/s", replace(OPEN, policy=GammaPolicy(min_confidence=0.3)), 64)
    assert session.reads_certainty
    session.extend(4, None, SURE)
    session.extend(5, None, TORN)
    assert not session.verifier_waits
    assert not session.wants_draft(8)
    drafts = session.take_unsent()
    assert drafts is not None
    assert drafts.draft.tokens == (4, 5)
    assert session.take_end() == DraftEnd("s", 1, 5, PrefixHash((1, 2, 3, 4, 5)).value)
    session.commit(commit(3, 4, 5, 6))
    assert session.verifier_waits
