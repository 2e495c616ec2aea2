"""The KV pool holds its byte budget, knows its sessions, and remembers what ended ones computed."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.blocks import BLOCK_TOKENS
from specdec.engine.kv_layout import KvLayout
from specdec.engine.kv_pool import KvMemory, KvPool
from specdec.errors import InternalError

LAYOUT = KvLayout(layers=2, heads=1, key_width=64, value_width=64, dtype=torch.float32, device=torch.device("cpu"))
PAGE = LAYOUT.page_tokens
assert PAGE == BLOCK_TOKENS


def pool(pages: int) -> KvPool:
    return KvPool(LAYOUT, pages * LAYOUT.page_bytes, "model")


def text(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))


def run(kv: KvPool, session: str, tokens: Sequence[int]) -> None:
    """Compute tokens, as a pass does: each token's keys and values are the token."""
    slab = kv[session]
    kv.seal(session)
    assert kv.reserve(session, slab.length + len(tokens))
    place = slice(slab.length, slab.length + len(tokens))
    numbers = torch.tensor(tokens, dtype=torch.float32)[:, None]
    slab.keys[..., place, :], slab.values[..., place, :] = numbers, numbers
    slab.grow(tokens)


def holds(kv: KvPool, session: str) -> bool:
    """Whether the session's keys and values are those of its tokens."""
    slab = kv[session]
    numbers = torch.tensor(slab.tokens, dtype=torch.float32)[:, None]
    parts = (slab.keys[..., : slab.length, :], slab.values[..., : slab.length, :])
    return all(bool((part == numbers).all()) for part in parts)


def pages(kv: KvPool) -> tuple[int, int]:
    """Live and cached."""
    return kv.memory.live // LAYOUT.page_bytes, kv.memory.cached // LAYOUT.page_bytes


def test_a_budget_that_is_not_a_whole_number_of_pages_is_rounded_down() -> None:
    kv = KvPool(LAYOUT, 2 * LAYOUT.page_bytes - 1)
    assert kv.capacity == PAGE
    assert kv.memory == KvMemory(LAYOUT.page_bytes, 0, 0)


def test_a_session_is_charged_for_its_tokens_and_not_for_its_limit() -> None:
    kv = pool(4)
    assert kv.admit("a", 4 * PAGE, text(PAGE + 1))
    assert pages(kv) == (2, 0)
    assert kv.admit("b", 4 * PAGE, text(1))
    assert pages(kv) == (3, 0)


def test_a_session_grows_by_pages_while_there_are_any() -> None:
    kv = pool(3)
    kv.admit("a", 4 * PAGE, text(PAGE))
    assert kv.reserve("a", PAGE)
    assert pages(kv) == (1, 0)
    assert kv.reserve("a", PAGE + 1)
    assert kv.reserve("a", 3 * PAGE)
    assert not kv.reserve("a", 3 * PAGE + 1)
    assert pages(kv) == (3, 0)
    with pytest.raises(InternalError, match=f"a is over its limit of {4 * PAGE} tokens"):
        kv.reserve("a", 4 * PAGE + 1)


def test_a_session_that_does_not_fit_changes_nothing() -> None:
    kv = pool(3)
    assert kv.admit("a", PAGE, text(PAGE))
    assert not kv.admit("b", 3 * PAGE, text(2 * PAGE + 1))
    assert pages(kv) == (1, 0)
    with pytest.raises(InternalError, match="b is not admitted"):
        kv["b"]


def test_a_session_comes_in_only_where_those_inside_can_still_grow() -> None:
    kv = pool(4)
    assert kv.admit("a", 4 * PAGE, text(PAGE))
    assert not kv.admit("b", 4 * PAGE, text(3 * PAGE, 500))
    assert kv.admit("c", 4 * PAGE, text(2 * PAGE, 500))
    assert kv.reserve("a", PAGE + 1)


def test_a_session_alone_may_fill_the_pool() -> None:
    kv = pool(4)
    assert kv.admit("a", 4 * PAGE, text(4 * PAGE))


def test_a_session_is_admitted_once() -> None:
    kv = pool(10)
    kv.admit("a", 1)
    with pytest.raises(InternalError, match="a is admitted already"):
        kv.admit("a", 1)


def test_an_unknown_session_cannot_be_released() -> None:
    with pytest.raises(InternalError, match="x is not admitted"):
        pool(1).release("x")


def test_a_session_begins_with_what_a_running_one_has_computed_of_its_prompt() -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(3 * PAGE + 5))
    run(kv, "a", [7])
    kv.admit("b", 100, [*text(2 * PAGE + 9), 500, 501])
    assert kv["b"].tokens == text(2 * PAGE)
    assert holds(kv, "b")
    run(kv, "b", [*text(9, 2 * PAGE), 500])
    assert holds(kv, "a")
    assert holds(kv, "b")


def test_what_the_last_pass_wrote_is_not_shared_before_the_next_begins() -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(PAGE))
    kv.admit("b", 100, text(2 * PAGE))
    assert kv["b"].length == 0
    kv.truncate("a", PAGE - 1)
    kv.seal("a")
    kv.admit("c", 100, text(2 * PAGE))
    assert kv["c"].length == 0


def test_the_last_token_is_always_left_to_compute() -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(2 * PAGE))
    kv.release("a")
    kv.admit("b", 100, text(2 * PAGE))
    assert kv["b"].length == PAGE
    kv.admit("c", 100, text(2 * PAGE + 1))
    assert kv["c"].length == 2 * PAGE


def test_an_ended_sessions_blocks_serve_those_that_begin_alike_in_the_same_domain() -> None:
    kv = pool(20)
    kv.admit("a", 100, (), "tenant")
    run(kv, "a", text(2 * PAGE + 3))
    kv.release("a")
    assert pages(kv) == (0, 3)
    for name, domain, length in (("b", "", 0), ("c", "other", 0), ("d", "tenant", 2 * PAGE)):
        assert kv.admit(name, 100, text(3 * PAGE), domain)
        assert kv[name].length == length
        assert holds(kv, name)


def test_memory_that_is_needed_is_taken_from_the_blocks_unused_for_longest() -> None:
    kv = pool(6)
    for number in range(3):
        kv.admit(f"s{number}", 2 * PAGE)
        run(kv, f"s{number}", text(2 * PAGE, 100 * number))
        kv.release(f"s{number}")
    assert pages(kv) == (0, 6)
    kv.admit("again", 2 * PAGE, text(PAGE + 1))
    assert kv["again"].length == PAGE
    assert pages(kv) == (2, 4)
    kv.release("again")
    kv.admit("new", 4 * PAGE, text(4 * PAGE, 900))
    assert pages(kv) == (4, 2)
    kv.release("new")
    found = []
    for number in range(3):
        kv.admit(f"t{number}", 2 * PAGE, [*text(PAGE, 100 * number), 5])
        found.append(kv[f"t{number}"].length)
        kv.release(f"t{number}")
    assert found == [PAGE, 0, 0]


def test_a_prefix_is_given_up_where_it_and_the_session_do_not_fit_both() -> None:
    kv = pool(4)
    kv.admit("a", 4 * PAGE)
    run(kv, "a", text(3 * PAGE))
    kv.release("a")
    assert kv.admit("b", 4 * PAGE, text(4 * PAGE))
    assert kv["b"].length == 0
    assert pages(kv) == (4, 0)


def test_of_two_sessions_that_end_alike_one_is_kept() -> None:
    kv = pool(20)
    for name, length in (("a", 3), ("b", 3), ("c", 2), ("d", 4)):
        kv.admit(name, 100, text(length * PAGE))
        run(kv, name, text(length * PAGE)[kv[name].length :])
    kv.release("a")
    kv.release("b")
    assert pages(kv)[1] == 3
    kv.release("c")
    assert pages(kv)[1] == 3
    kv.release("d")
    assert pages(kv) == (0, 4)


def test_a_block_that_is_rolled_back_is_no_longer_given_out() -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(2 * PAGE))
    kv.seal("a")
    kv.truncate("a", PAGE + 3)
    run(kv, "a", text(20, 700))
    kv.seal("a")
    kv.admit("b", 100, text(3 * PAGE))
    assert kv["b"].length == PAGE
    kv.admit("c", 100, [*text(PAGE + 3), *text(20, 700)])
    assert kv["c"].length == 2 * PAGE
    assert holds(kv, "c")


moves = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["in", "grow", "back", "out"]), st.integers(1, 70)), max_size=60
)


@given(moves)
def test_whatever_comes_and_goes_the_budget_holds_and_no_session_reads_anothers(
    moves: list[tuple[int, str, int]],
) -> None:
    kv, inside = pool(9), set[str]()
    for number, move, size in moves:
        name = f"s{number}"
        if name not in inside:
            if kv.admit(name, 100, text(size + 1, 1000 * (number % 2))):
                inside.add(name)
        elif move == "out":
            kv.release(name)
            inside.remove(name)
        elif move == "back":
            kv.truncate(name, max(0, kv[name].length - size))
        elif kv[name].length + size <= 100 and kv.reserve(name, kv[name].length + size):
            run(kv, name, text(size, 1000 * (number % 2) + kv[name].length))
        live = sum(kv[each].pages for each in inside)
        memory = kv.memory
        assert memory.live == live * LAYOUT.page_bytes
        assert memory.live + memory.cached <= memory.budget
        assert all(holds(kv, each) and kv[each].length <= kv[each].pages * PAGE for each in inside)
