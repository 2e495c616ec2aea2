"""Decoding sessions are always in the pass and prompts share a budget. Rank is arrival, shifted by priority."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.verifier_service.verifier_fakes import make_row, point_mass
from verifier_service.backends.batch_plan import Row, ScheduledChunk, is_turn, level, plan, rank, turn

Waiting = tuple[Row, int]


def decoding(name: str) -> Waiting:
    return make_row(name, range(5), draft=point_mass(1, 2, 3)), 4


def prompt(name: str, size: int, done: int = 0) -> Waiting:
    return make_row(name, range(1000), done + size), done


def last_piece(name: str, size: int) -> Waiting:
    return make_row(name, range(50 + size), draft=point_mass(1, 2)), 50


def counts(waiting: list[Waiting], chunk_tokens: int = 10) -> dict[str, int]:
    return {chunk.row.kv_name: chunk.count for chunk in plan(waiting, chunk_tokens, 1000)}


def test_every_decoding_session_goes_whatever_the_prompts_need() -> None:
    chunks = counts([prompt("p", 100), *(decoding(f"d{index}") for index in range(50))])
    assert len(chunks) == 51
    assert chunks["p"] == 10


def test_a_prompt_alone_has_the_whole_budget() -> None:
    assert counts([prompt("p", 7)]) == {"p": 7}
    assert counts([prompt("p", 11)]) == {"p": 10}
    assert counts([prompt("p", 2)], chunk_tokens=1) == {"p": 1}


def test_a_short_prompt_does_not_wait_for_a_long_one_that_was_first() -> None:
    assert counts([prompt("long", 100), prompt("short", 3)]) == {"long": 7, "short": 3}


def test_a_long_prompt_that_was_first_is_not_held_up_by_short_ones() -> None:
    shorts = [prompt(f"s{index}", 2) for index in range(9)]
    assert counts([prompt("long", 100), *shorts]) == {"long": 5, "s0": 2, "s1": 2, "s2": 1}


def test_those_after_the_first_go_by_what_they_need() -> None:
    assert counts([prompt("a", 4), prompt("b", 9), prompt("c", 2), decoding("d")]) == {"a": 4, "b": 4, "c": 2, "d": 1}


def test_chunks_come_in_the_order_of_the_queue() -> None:
    waiting = [decoding("d"), prompt("a", 4), prompt("c", 2), decoding("e")]
    assert list(counts(waiting)) == ["d", "a", "c", "e"]


def test_a_row_is_judged_with_its_last_tokens_and_not_before() -> None:
    (whole,) = plan([last_piece("a", 10)], 10, 10)
    assert (whole.complete, whole.length) == (True, 62)
    (part,) = plan([last_piece("a", 11)], 10, 10)
    assert (part.complete, part.length) == (False, 60)


def test_drafts_that_are_too_many_together_are_cut_where_they_are_longest() -> None:
    drafts = {"a": (1, 2, 3, 4, 5), "b": (6,), "c": (7, 8, 9)}
    waiting: list[Waiting] = [
        (make_row(name, range(5), draft=point_mass(*tokens)), 4) for name, tokens in drafts.items()
    ]
    chunks = plan([*waiting, prompt("p", 3)], 10, 6)
    judged = [chunk.judged for chunk in chunks if chunk.judged]
    assert {row.kv_name: row.draft.tokens for row in judged} == {"a": (1, 2), "b": (6,), "c": (7, 8)}
    assert [len(row.draft.probs) for row in judged] == [2, 1, 2]
    assert [chunk.length for chunk in chunks] == [7, 6, 7, 3]
    assert [chunk.drafts for chunk in plan(waiting, 10, 2)] == [0, 0, 0]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(0, 100))
def test_a_budget_is_shared_evenly_and_as_far_as_it_goes(wanted: list[int], budget: int) -> None:
    most = level(wanted, budget)
    assert sum(min(want, most) for want in wanted) <= budget
    assert most == max(wanted) or sum(min(want, most + 1) for want in wanted) > budget


def test_nothing_is_planned_of_nothing() -> None:
    assert plan([], 1, 1) == []


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=12), st.integers(1, 30))
def test_a_pass_keeps_its_budget_and_wastes_none_of_it(sizes: list[tuple[int, bool]], chunk_tokens: int) -> None:
    waiting = [
        decoding(f"s{index}") if size == 1 else (last_piece if judged else prompt)(f"s{index}", size)
        for index, (size, judged) in enumerate(sizes)
    ]
    chunks: list[ScheduledChunk] = plan(waiting, chunk_tokens, 1000)
    prompts = {chunk.row.kv_name: chunk.count for chunk in chunks if chunk.row.goal - chunk.start > 1}
    wanted = sum(size for size, _ in sizes if size > 1)
    assert sum(prompts.values()) == min(wanted, chunk_tokens)
    assert len(chunks) - len(prompts) == sum(size == 1 for size, _ in sizes)
    first = next((index for index, (size, _) in enumerate(sizes) if size > 1), None)
    if first is not None:
        assert prompts[f"s{first}"] >= min(sizes[first][0], max(chunk_tokens // 2, 1))


def test_a_level_of_priority_is_worth_some_waiting_and_no_more() -> None:
    assert rank(0, 5.0) < rank(0, 6.0) < rank(1, 5.0)
    assert rank(-1, 20.0) < rank(0, 5.0)
    assert rank(5, 0.0) < rank(0, 1000.0)


@pytest.mark.parametrize(
    ("plain", "drafted", "ready", "taken"),
    [(0, 4, True, 4), (0, 3, False, 3), (4, 1, False, 1), (4, 3, True, 2), (6, 1, True, 1)],
)
def test_a_turn_is_half_of_the_sessions_that_draft_and_waits_for_no_others(
    plain: int, drafted: int, ready: bool, taken: int
) -> None:
    """Each group has half of the drafting sessions, and all rows without drafts are in every group."""
    waiting = [make_row(f"p{index}", range(5)) for index in range(plain)]
    waiting += [decoding(f"d{index}")[0] for index in range(drafted)]
    assert is_turn(waiting, 8) is ready
    chosen = turn(waiting, 8)
    assert [row.kv_name for row in chosen if not row.draft.tokens] == [f"p{index}" for index in range(plain)]
    assert [row.kv_name for row in chosen if row.draft.tokens] == [f"d{index}" for index in range(taken)]
