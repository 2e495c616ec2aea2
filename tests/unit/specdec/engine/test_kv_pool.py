"""The KV pool holds its byte budget, knows its sessions, and remembers what ended ones computed."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.engine.host import SlabStore
from specdec.engine.kv_layout import KvLayout
from specdec.engine.kv_pool import KvMemory, KvPool
from specdec.engine.kv_store import KvStore
from specdec.engine.paged.pages import PageStore
from specdec.errors import InternalError
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.rules.tree import Tree

LAYOUT = KvLayout(layers=2, heads=1, key_width=64, value_width=64, dtype=torch.float32, device=torch.device("cpu"))
PAGE = BLOCK_TOKENS
PAGE_BYTES = PAGE * LAYOUT.token_bytes
STORES: dict[str, Callable[[KvLayout, int], KvStore[Any]]] = {"slabs": SlabStore, "pages": PageStore}
Pool = Callable[[int], KvPool[Any]]
SHARED, COPIED = "pages", "slabs"
FORKED = Tree((-1, 0, 0, 2, 1, 3))


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    kind: str = request.param
    return kind


@pytest.fixture
def pool(memory: str) -> Pool:
    """Makes a pool of so many pages."""
    return lambda pages: make(memory, pages)


def make(memory: str, pages: int) -> KvPool[Any]:
    store = STORES[memory](LAYOUT, pages * PAGE_BYTES)
    assert store.page_tokens == PAGE
    return KvPool(store, "model")


def text(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))


def numbers(tokens: Sequence[int]) -> torch.Tensor:
    """Keys and values of tokens: every one of a token's is the token."""
    return torch.tensor(tokens, dtype=torch.float32)[:, None].expand(LAYOUT.layers, LAYOUT.heads, -1, 128)


def run(kv: KvPool[Any], session: str, tokens: Sequence[int], tree: Tree | None = None) -> None:
    """Compute tokens, as a pass does."""
    sequence = kv[session]
    kv.seal(session)
    assert kv.reserve(session, sequence.length + len(tokens))
    sequence.append(tokens, numbers(tokens))
    sequence.tree = tree


def holds(kv: KvPool[Any], session: str) -> bool:
    """Whether the session's keys and values are those of its tokens."""
    sequence = kv[session]
    return torch.equal(sequence.read(0, sequence.length), numbers(sequence.tokens))


def pages(kv: KvPool[Any]) -> tuple[int, int]:
    """Live and cached."""
    return kv.memory.live // PAGE_BYTES, kv.memory.cached // PAGE_BYTES


def test_a_budget_that_is_not_a_whole_number_of_pages_is_rounded_down(memory: str) -> None:
    kv = KvPool(STORES[memory](LAYOUT, 2 * PAGE_BYTES - 1))
    assert kv.capacity == PAGE
    assert kv.memory == KvMemory(PAGE_BYTES, 0, 0)


def test_a_session_is_charged_for_its_tokens_and_not_for_its_limit(pool: Pool) -> None:
    kv = pool(4)
    assert kv.admit("a", 4 * PAGE, text(PAGE + 1))
    assert pages(kv) == (2, 0)
    assert kv.admit("b", 4 * PAGE, text(1))
    assert pages(kv) == (3, 0)


def test_a_session_grows_by_pages_while_there_are_any(pool: Pool) -> None:
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


def test_a_session_that_does_not_fit_changes_nothing(pool: Pool) -> None:
    kv = pool(3)
    assert kv.admit("a", PAGE, text(PAGE))
    assert not kv.admit("b", 3 * PAGE, text(2 * PAGE + 1))
    assert pages(kv) == (1, 0)
    with pytest.raises(InternalError, match="b is not admitted"):
        kv["b"]


def test_a_session_comes_in_only_where_those_inside_can_still_grow(pool: Pool) -> None:
    kv = pool(4)
    assert kv.admit("a", 4 * PAGE, text(PAGE))
    assert not kv.admit("b", 4 * PAGE, text(3 * PAGE, 500))
    assert kv.admit("c", 4 * PAGE, text(2 * PAGE, 500))
    assert kv.reserve("a", PAGE + 1)


def test_a_session_alone_may_fill_the_pool(pool: Pool) -> None:
    kv = pool(4)
    assert kv.admit("a", 4 * PAGE, text(4 * PAGE))


def test_a_session_is_admitted_once(pool: Pool) -> None:
    kv = pool(10)
    kv.admit("a", 1)
    with pytest.raises(InternalError, match="a is admitted already"):
        kv.admit("a", 1)


def test_an_unknown_session_cannot_be_released(pool: Pool) -> None:
    with pytest.raises(InternalError, match="x is not admitted"):
        pool(1).release("x")


def test_a_session_begins_with_what_a_running_one_has_computed_of_its_prompt(pool: Pool) -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(3 * PAGE + 5))
    run(kv, "a", [7])
    kv.admit("b", 100, [*text(2 * PAGE + 9), 500, 501])
    assert kv["b"].tokens == text(2 * PAGE + 9)
    assert holds(kv, "b")
    run(kv, "b", [500])
    assert holds(kv, "a")
    assert holds(kv, "b")


def test_what_the_last_pass_wrote_is_not_shared_before_the_next_begins(pool: Pool) -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(PAGE))
    kv.admit("b", 100, text(2 * PAGE))
    assert kv["b"].length == 0
    kv.truncate("a", PAGE - 1)
    kv.seal("a")
    kv.admit("c", 100, text(2 * PAGE))
    assert kv["c"].length == 0


def test_the_last_token_is_always_left_to_compute(pool: Pool) -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(2 * PAGE))
    kv.release("a")
    kv.admit("b", 100, text(2 * PAGE))
    assert kv["b"].length == PAGE
    kv.admit("c", 100, text(2 * PAGE + 1))
    assert kv["c"].length == 2 * PAGE


def test_an_ended_sessions_blocks_serve_those_that_begin_alike_in_the_same_domain(pool: Pool, memory: str) -> None:
    kv = pool(20)
    kv.admit("a", 100, (), "tenant")
    run(kv, "a", text(2 * PAGE + 3))
    kv.release("a")
    assert pages(kv) == (0, 3 if memory == COPIED else 2)
    for name, domain, length in (("b", "", 0), ("c", "other", 0), ("d", "tenant", 2 * PAGE)):
        assert kv.admit(name, 100, text(3 * PAGE), domain)
        assert kv[name].length == length
        assert holds(kv, name)


def test_memory_that_is_needed_is_taken_from_the_blocks_unused_for_longest(pool: Pool, memory: str) -> None:
    kv = pool(6)
    for number in range(3):
        kv.admit(f"s{number}", 2 * PAGE)
        run(kv, f"s{number}", text(2 * PAGE, 100 * number))
        kv.release(f"s{number}")
    assert pages(kv) == (0, 6)
    kv.admit("again", 2 * PAGE, text(PAGE + 1))
    assert kv["again"].length == PAGE
    assert pages(kv) == ((2, 4) if memory == COPIED else (2, 3))
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


def test_a_prefix_that_must_be_copied_is_given_up_where_it_and_the_session_do_not_fit_both(
    pool: Pool, memory: str
) -> None:
    kv = pool(4)
    kv.admit("a", 4 * PAGE)
    run(kv, "a", text(3 * PAGE))
    kv.release("a")
    assert kv.admit("b", 4 * PAGE, text(4 * PAGE))
    assert kv["b"].length == (0 if memory == COPIED else 3 * PAGE)
    assert pages(kv) == (4, 0)


def test_of_two_sessions_that_end_alike_one_is_kept(pool: Pool) -> None:
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


def test_a_block_that_is_rolled_back_is_no_longer_given_out(pool: Pool) -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(2 * PAGE))
    kv.seal("a")
    kv.truncate("a", PAGE + 3)
    run(kv, "a", text(20, 700))
    kv.seal("a")
    kv.admit("b", 100, text(3 * PAGE))
    assert kv["b"].length == PAGE + 3
    kv.admit("c", 100, [*text(PAGE + 3), *text(20, 700)])
    assert kv["c"].length == PAGE + 22
    assert holds(kv, "c")


def test_a_session_is_admitted_once_and_only_into_memory(pool: Pool) -> None:
    kv = pool(20)
    kv.admit("a", 100)
    with pytest.raises(InternalError, match="a is admitted already"):
        kv.admit("a", 100)
    assert not pool(0).admit("a", 1, [1])


def test_what_is_written_over_a_rolled_back_prefix_leaves_those_who_share_it_alone(pool: Pool) -> None:
    kv = pool(20)
    kv.admit("a", 100)
    run(kv, "a", text(3 * PAGE))
    kv.seal("a")
    kv.admit("b", 100, text(3 * PAGE + 1))
    kv.truncate("a", 5)
    run(kv, "a", text(3 * PAGE, 500))
    assert kv["b"].tokens == text(3 * PAGE)
    assert holds(kv, "a")
    assert holds(kv, "b")


def test_pages_that_only_ended_sessions_share_are_given_up_before_a_session_is_refused(pool: Pool) -> None:
    kv = pool(3)
    kv.admit("a", 100)
    run(kv, "a", text(2 * PAGE))
    kv.release("a")
    kv.admit("b", 100, text(2 * PAGE + 1))
    run(kv, "b", text(2 * PAGE + 1)[kv["b"].length :])
    kv.truncate("b", PAGE + 1)
    assert kv.reserve("b", 3 * PAGE)
    run(kv, "b", text(PAGE, 500))
    assert holds(kv, "b")


MOVES = ("in", "grow", "stray", "branch", "back", "out")
moves = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(MOVES), st.integers(1, 50)), min_size=5, max_size=60)


@pytest.mark.parametrize("store", STORES)
@given(moves)
def test_whatever_comes_and_goes_the_budget_holds_and_no_session_reads_anothers(
    store: str, moves: list[tuple[int, str, int]]
) -> None:
    kv, inside = make(store, 9), set[str]()
    for number, move, size in moves:
        step(kv, inside, number, move, size)
        memory = kv.memory
        assert memory.live + memory.cached <= memory.budget
        assert memory.live == live_pages(kv, inside) * PAGE_BYTES
        assert all(holds(kv, each) and kv[each].length <= len_of(kv[each].pages) * PAGE for each in inside)
    for name in inside:
        kv.release(name)
    assert kv.memory.live == 0
    assert kv.admit("all", 9 * PAGE, text(9 * PAGE, 70_000))
    assert pages(kv) == (9, 0)


def step(kv: KvPool[Any], inside: set[str], number: int, move: str, size: int) -> None:
    """Do one move of a session, where it can be done."""
    name, common, own = f"s{number}", 1000 * (number % 2), 5000 * (number + 1)
    if name not in inside:
        inside |= {name} if kv.admit(name, 100, text(size + 1, common)) else set()
    elif move == "out":
        kv.release(name)
        inside.remove(name)
    elif move == "back":
        kv.truncate(name, max(0, kv[name].length - size))
    else:
        grow(kv, name, text(size, (common if move == "grow" else own) + kv[name].length), move == "branch")


def grow(kv: KvPool[Any], name: str, tokens: list[int], branch: bool) -> None:
    """Append tokens, or those of a tree of which a path is kept."""
    tokens = tokens[: len(FORKED)] if branch else tokens
    base = kv[name].length
    if base + len(tokens) > 100 or not kv.reserve(name, base + len(tokens)):
        return
    if branch and len(tokens) == len(FORKED):
        run(kv, name, tokens, FORKED)
        kv.keep(name, base, (0, 2, 3))
    else:
        run(kv, name, tokens)


def live_pages(kv: KvPool[Any], inside: set[str]) -> int:
    """Pages of running sessions, those that several have counted once."""
    lists = [kv[name].pages for name in inside]
    return sum(each for each in lists if isinstance(each, int)) + len(
        {page for each in lists if not isinstance(each, int) for page in each}
    )


def len_of(pages: Any) -> int:
    """A slab counts its pages, a list has them."""
    return pages if isinstance(pages, int) else len(pages)
