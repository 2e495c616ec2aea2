"""After any moves, the KV pool keeps to its budget, and no session reads the keys and values of another."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.engine.kv.pool import KvPool
from specdec.trees.tree import Tree
from tests.unit.specdec.engine.kv_pools import PAGE, PAGE_BYTES, STORES, holds, make, pages, run, text

FORKED = Tree((-1, 0, 0, 2, 1, 3))
MOVES = ("in", "grow", "stray", "branch", "back", "out")
moves = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(MOVES), st.integers(1, 50)), min_size=5, max_size=60)


@pytest.mark.parametrize("store", STORES)
@given(moves)
def test_the_budget_holds_and_no_session_reads_another_s_memory(store: str, moves: list[tuple[int, str, int]]) -> None:
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
    """Make one move of a session if it is possible."""
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
    """Return the number of pages of running sessions, counting shared pages once."""
    lists = [kv[name].pages for name in inside]
    return sum(each for each in lists if isinstance(each, int)) + len(
        {page for each in lists if not isinstance(each, int) for page in each}
    )


def len_of(pages: Any) -> int:
    """Return the number of pages, which a slab counts and a list holds."""
    return pages if isinstance(pages, int) else len(pages)
