"""The state of one session: the chain after a verdict, fences, and the next request."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.refusal import SessionRefused
from specdec.rules.prefix import PrefixHash, common_length
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.session import DraftEnd, NackReason, Open
from tests.support.drafter_fakes import OPEN, commit

CONTEXT = 64


def _session(drafts: tuple[int, ...] = (), opened: Open = OPEN) -> DraftSession:
    session = DraftSession("1/s", opened, CONTEXT)
    for token in drafts:
        session.extend(token)
    return session


def _reason(act: Callable[[], object]) -> NackReason:
    with pytest.raises(SessionRefused) as refused:
        act()
    return refused.value.reason


def test_a_verdict_that_matches_the_chain_keeps_the_rest_of_it() -> None:
    session = _session((4, 5, 6, 7))
    assert session.commit(commit(3, 4, 5)) == 7
    assert (session.tokens_from(0), session.drafted) == ([1, 2, 3, 4, 5, 6, 7], 2)


def test_a_verdict_that_differs_drops_the_chain_from_there() -> None:
    session = _session((4, 5, 6, 7))
    assert session.commit(commit(3, 4, 9)) == 4
    assert (session.tokens_from(0), session.drafted) == ([1, 2, 3, 4, 9], 0)


def test_a_verdict_longer_than_the_chain_keeps_what_the_chain_computed() -> None:
    session = _session((4, 5))
    assert session.commit(commit(3, 4, 5, 6)) == 5
    assert (session.tokens_from(0), session.drafted) == ([1, 2, 3, 4, 5, 6], 0)


def test_a_chain_counts_its_start_from_where_it_began_anew() -> None:
    session = _session((4, 5, 6))
    session.commit(commit(3, 4))
    assert session.chain_start == 3
    session.commit(commit(4, 9))
    assert session.chain_start == 5


def test_a_chain_that_is_used_up_begins_anew() -> None:
    session = _session((4, 5))
    session.commit(commit(3, 4, 5))
    assert session.chain_start == 5


def test_the_same_commit_twice_changes_nothing() -> None:
    session = _session((4, 5, 6))
    session.commit(commit(3, 4, 9))
    session.extend(8)
    assert session.commit(commit(3, 4, 9)) == 6
    assert session.tokens_from(0) == [1, 2, 3, 4, 9, 8]


def test_a_commit_may_overlap_what_is_committed() -> None:
    session = _session((4, 5, 6))
    session.commit(commit(3, 4))
    session.commit(commit(2, 3, 4, 5))
    assert (session.tokens_from(0), session.drafted) == ([1, 2, 3, 4, 5, 6], 1)


def test_an_old_commit_does_not_bring_its_gamma_back() -> None:
    session = _session()
    session.commit(commit(3, 4, gamma=0))
    session.commit(commit(4, 5, gamma=0))
    session.commit(commit(3, 4, gamma=9))
    assert not session.wants_draft(0)


def test_an_overlap_that_contradicts_is_stale() -> None:
    session = _session()
    session.commit(commit(3, 4, 5))
    assert _reason(lambda: session.commit(commit(3, 4, 6, 7))) is NackReason.STALE
    assert session.tokens_from(0) == [1, 2, 3, 4, 5]


def test_a_gap_is_stale() -> None:
    assert _reason(lambda: _session((4,)).commit(commit(4, 5))) is NackReason.STALE


def test_an_older_epoch_is_stale_and_a_newer_one_unknown() -> None:
    session = _session(opened=replace(OPEN, epoch=5))
    assert _reason(lambda: session.commit(commit(3, 4, epoch=4))) is NackReason.STALE
    assert _reason(lambda: session.commit(commit(3, 4, epoch=6))) is NackReason.UNKNOWN


def test_gamma_drafts_are_wanted_and_no_more() -> None:
    session = _session()
    wanted = 0
    while session.wants_draft(0):
        session.extend(4)
        wanted += 1
    assert wanted == 3


def test_drafting_ahead_goes_past_gamma_but_is_not_urgent() -> None:
    session = _session((4, 4, 4))
    assert not session.verifier_waits
    assert session.wants_draft(1)
    session.extend(4)
    assert not session.wants_draft(1)


def test_nothing_is_drafted_ahead_where_it_has_hardly_ever_been_of_use() -> None:
    session = _session(opened=replace(OPEN, max_len=CONTEXT))
    for length in range(3, 13):
        session.extend(4)
        session.commit(commit(length, 9, gamma=2))
    assert session.wanted(8) == 2
    for length in range(13, 53):
        session.extend(4)
        session.commit(commit(length, 4, gamma=2))
    assert session.wanted(8) == 2 + 3


def test_gamma_0_wants_nothing_even_ahead() -> None:
    session = _session()
    session.commit(commit(3, 4, gamma=0))
    assert not session.wants_draft(5)
    assert not session.verifier_waits


@pytest.mark.parametrize(
    ("max_len", "context", "most"), [(5, CONTEXT, 5), (40, 4, 4), (3, CONTEXT, 3), (1, CONTEXT, 3)]
)
def test_nothing_is_drafted_past_the_end(max_len: int, context: int, most: int) -> None:
    session = DraftSession("1/s", replace(OPEN, max_len=max_len), context)
    while session.wants_draft(8):
        session.extend(4)
    assert len(session) == most


def test_the_end_is_told_once_per_verdict() -> None:
    session = _session((4, 5), replace(OPEN, max_len=5))
    assert session.take_end() == DraftEnd("s", 1, 5, PrefixHash((1, 2, 3, 4, 5)).value)
    assert session.take_end() is None
    session.commit(commit(3, 4))
    assert session.take_end() == DraftEnd("s", 1, 5, PrefixHash((1, 2, 3, 4, 5)).value)


def test_a_complete_draft_has_no_end() -> None:
    assert not _session((4, 5, 6), replace(OPEN, max_len=6)).take_end()
    assert not _session((4, 5), OPEN).take_end()


@pytest.mark.parametrize("wrong", [{"tokens": ()}, {"prompt_len": 4}, {"mode": Mode.OFF}])
def test_an_open_that_makes_no_sense_is_malformed(wrong: dict[str, object]) -> None:
    assert _reason(lambda: DraftSession("1/s", replace(OPEN, **wrong), CONTEXT)) is NackReason.MALFORMED  # type: ignore[arg-type]


def test_penalties_see_the_drafts() -> None:
    session = _session((7, 8), replace(OPEN, params=SamplingParams(presence_penalty=1.0)))
    assert (session.history.prompt, session.history.output) == ([1, 2], [3, 7, 8])


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 1), max_size=3)), max_size=12))
def test_handed_out_tokens_continue_the_last_and_none_is_repeated(
    acts: list[tuple[int, list[int]]],
) -> None:
    session = _session(opened=replace(OPEN, gamma=9, max_len=CONTEXT))
    committed, heard = list(OPEN.tokens), list(OPEN.tokens)
    for act, tokens in acts:
        before = session.tokens_from(0)
        if act == 0:
            for token in tokens:
                session.extend(token)
        elif act == 1:
            standing = session.commit(commit(len(committed), *tokens, gamma=9))
            committed += tokens
            assert session.tokens_from(0)[:standing] == before[:standing]
            assert standing in (len(before), common_length(session.tokens_from(0), before))
            if session.tokens_from(0) != before:
                heard = session.tokens_from(0)
        elif (chunk := session.take_unsent()) is not None:
            assert (chunk.base_len, chunk.prefix_hash) == (len(heard), PrefixHash(heard).value)
            heard += chunk.draft.tokens
            assert heard == session.tokens_from(0)
        assert session.tokens_from(0)[: len(committed)] == committed
        assert len(session) - session.drafted == len(committed)
        assert session.chain_start <= len(committed)


def test_a_draft_is_handed_out_when_it_is_whole_and_when_it_grows_no_more() -> None:
    session = _session((4, 4))
    assert not session.is_due(2)
    due = []
    for _ in range(3):
        session.extend(4)
        due.append(session.is_due(2))
    assert due == [True, False, True]


def test_nothing_is_drafted_that_the_next_round_cannot_use() -> None:
    session = _session((4,) * 7)
    assert not session.wants_draft(16)
    assert _session((4,) * 6).wants_draft(16)
