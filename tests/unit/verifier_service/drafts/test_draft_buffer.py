"""The chain holds only drafts of the exact prefix."""

from dataclasses import replace

import pytest

from specdec.rules.draft import Draft, DraftStep
from tests.unit.verifier_service.verifier_fakes import chunk_after, point_mass
from verifier_service.drafts.draft_buffer import DraftBuffer

PREFIX = (5, 6, 7)


def chain_of(*tokens: int) -> DraftBuffer:
    chain = DraftBuffer(PREFIX, limit=8)
    if tokens:
        assert chain.add(chunk_after(PREFIX, *tokens))
    return chain


def test_drafts_of_the_committed_prefix_are_taken() -> None:
    chain = chain_of(1, 2, 3)
    assert chain.take(2).tokens == (1, 2)
    assert [int(q.ids) for q in chain.take(2).probs] == [1, 2]
    assert len(chain) == 3


def test_drafts_that_continue_the_chain_are_appended() -> None:
    chain = chain_of(1, 2)
    assert chain.add(chunk_after((*PREFIX, 1, 2), 3, 4))
    assert chain.take(9).tokens == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "chunk",
    [
        chunk_after((5, 6, 8), 1),
        chunk_after((*PREFIX, 9), 1),
        chunk_after((5, 6), 7, 1),
    ],
    ids=["other tokens of the same length", "a gap", "before the session began here"],
)
def test_drafts_of_another_prefix_are_dropped(chunk: object) -> None:
    chain = chain_of()
    assert not chain.add(chunk)  # type: ignore[arg-type]
    assert chain.take(4).tokens == ()


def test_equal_length_is_not_enough() -> None:
    chain = chain_of(1, 2)
    assert not chain.add(chunk_after((*PREFIX, 1, 9), 3))


def test_a_late_chain_is_used_as_far_as_it_goes_past_what_was_committed() -> None:
    chain = chain_of()
    chain.advance((1, 2), judged=0)
    assert chain.add(chunk_after(PREFIX, 1, 2, 3, 4))
    assert chain.take(4).tokens == (3, 4)
    assert [int(q.ids) for q in chain.take(4).probs] == [3, 4]


def test_a_late_chain_that_the_target_contradicted_is_dropped() -> None:
    chain = chain_of()
    chain.advance((1, 9), judged=0)
    assert not chain.add(chunk_after(PREFIX, 1, 2, 3))
    assert len(chain) == 0


def test_the_same_drafts_twice_change_nothing() -> None:
    chain = chain_of(1, 2)
    assert not chain.add(chunk_after(PREFIX, 1, 2))
    assert chain.take(4).tokens == (1, 2)


def test_newer_drafts_replace_older_ones_from_where_they_differ() -> None:
    chain = chain_of(1, 2, 3)
    assert chain.add(chunk_after(PREFIX, 1, 8))
    assert chain.take(4).tokens == (1, 8)


def test_drafts_past_the_bonus_token_stay_when_they_continue_it() -> None:
    chain = chain_of(1, 2, 3, 4)
    assert chain.advance((1, 2, 3), judged=2)
    assert chain.committed == (*PREFIX, 1, 2, 3)
    assert chain.take(4).tokens == (4,)


def test_drafts_past_another_bonus_token_go() -> None:
    chain = chain_of(1, 2, 3, 4)
    assert chain.advance((1, 2, 9), judged=2)
    assert len(chain) == 0
    assert chain.add(chunk_after((*PREFIX, 1, 2, 9), 4))


def test_drafts_that_a_verdict_saw_and_did_not_commit_are_never_used_again() -> None:
    chain = chain_of(1, 2, 3, 4)
    # The recovered token equals the draft, and the drafts after it have been judged.
    assert not chain.advance((1, 2), judged=4)
    assert len(chain) == 0


def test_more_than_the_limit_is_not_held() -> None:
    chain = chain_of(*range(10))
    assert len(chain) == 8
    assert not chain.add(chunk_after((*PREFIX, *range(8)), 8))


def test_a_chunk_older_than_what_is_remembered_is_dropped() -> None:
    chain = chain_of()
    text = [1] * 600
    for token in text:
        chain.advance((token,), judged=0)
    assert not chain.add(chunk_after((*PREFIX, *text), *text, 2, base_len=len(PREFIX) + 10))
    assert chain.add(chunk_after((*PREFIX, *text), 1, 1, 2, base_len=len(PREFIX) + 598))
    assert chain.take(3).tokens == (2,)


def test_drafts_without_distributions_stay_without() -> None:
    chain = chain_of()
    bare = chunk_after(PREFIX)
    object.__setattr__(bare, "draft", type(bare.draft)((1, 2)))
    chain.add(bare)
    assert chain.take(2).probs == ()
    assert point_mass(1).probs


def test_the_steps_of_a_chain_stay_beside_its_tokens() -> None:
    chain = DraftBuffer(PREFIX, limit=8)
    one, two, three = (DraftStep(0.25 * place, 8 - place) for place in range(3))
    first = chunk_after(PREFIX, 1, 2)
    assert chain.add(replace(first, draft=Draft((1, 2), first.draft.probs, (one, two))))
    last = chunk_after((*PREFIX, 1, 2), 3)
    assert chain.add(replace(last, draft=Draft((3,), last.draft.probs, (three,))))
    assert chain.take(2).steps == (one, two)
    assert chain.advance((1, 2, 3), judged=2)
    assert chain.take(9).steps == ()
    assert chain.add(replace(chunk_after((*PREFIX, 1, 2, 3), 4), draft=Draft((4,), steps=(three,))))
    assert chain.take(9).steps == (three,)


def test_cleared_drafts_are_gone() -> None:
    chain = chain_of(1, 2)
    chain.clear()
    assert (len(chain), chain.end, chain.committed_len) == (0, 3, 3)


def test_a_pushed_chain_is_used_once_exactly_its_prefix_is_committed() -> None:
    chain = chain_of(1, 2)
    for token, drafts in ((3, (4, 5)), (9, (6, 7))):
        assert not chain.add(chunk_after((*PREFIX, 1, token), *drafts))
    assert chain.take(4).tokens == (1, 2)
    assert chain.advance((1, 9), judged=2)
    assert chain.take(4).tokens == (6, 7)
    assert [int(q.ids) for q in chain.take(4).probs] == [6, 7]
    assert chain.add(chunk_after((*PREFIX, 1, 9, 6, 7), 8))


def test_a_pushed_chain_of_another_outcome_is_dropped_with_the_verdict() -> None:
    chain = chain_of(1, 2)
    chain.add(chunk_after((*PREFIX, 1, 3), 4))
    assert chain.advance((1, 8), judged=2)
    assert len(chain) == 0
    assert chain.advance((3, 4), judged=0)
    assert len(chain) == 0


def test_pushed_chains_are_bounded_and_none_outlives_the_drafter() -> None:
    chain = chain_of(1)
    for token in range(2, 200):
        chain.add(chunk_after((*PREFIX, token), 5))
    assert len(chain._pushed) == 64
    chain.clear()
    chain.advance((2,), judged=0)
    assert len(chain) == 0
