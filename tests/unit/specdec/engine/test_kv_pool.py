"""The KV pool holds its byte budget and knows its sessions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.engine.kv_pool import KvLayout, KvPool, Slab
from specdec.errors import InternalError
from specdec.tree import Tree

LAYOUT = KvLayout(layers=3, heads=2, key_width=4, value_width=6, dtype=torch.float32, device=torch.device("cpu"))


def pool(tokens: int) -> KvPool:
    return KvPool(LAYOUT, tokens * LAYOUT.token_bytes)


def test_a_tokens_bytes_are_all_layers_keys_and_values() -> None:
    assert LAYOUT.token_bytes == 3 * 2 * (4 + 6) * 4


def test_a_slab_has_the_memory_that_was_accounted_for() -> None:
    kv = pool(10)
    kv.reserve("a", 7)
    slab = kv["a"]
    assert slab.keys.nbytes + slab.values.nbytes == 7 * LAYOUT.token_bytes
    assert slab.keys.shape == (3, 1, 2, 7, 4)
    assert slab.values.shape == (3, 1, 2, 7, 6)
    assert slab.length == 0


def test_a_budget_that_is_not_a_whole_number_of_tokens_is_rounded_down() -> None:
    assert KvPool(LAYOUT, 2 * LAYOUT.token_bytes - 1).capacity == 1


def test_a_session_that_does_not_fit_changes_nothing() -> None:
    kv = pool(10)
    assert kv.reserve("a", 6)
    assert not kv.reserve("b", 5)
    assert kv.reserve("c", 4)
    with pytest.raises(InternalError, match="b is not admitted"):
        kv["b"]


def test_released_memory_is_free_for_sessions_of_another_size() -> None:
    kv = pool(10)
    for name in "abcde":
        kv.reserve(name, 2)
    kv.release("b")
    kv.release("d")
    assert kv.reserve("f", 4)
    assert not kv.reserve("g", 1)


def test_a_session_is_admitted_once() -> None:
    kv = pool(10)
    kv.reserve("a", 1)
    with pytest.raises(InternalError, match="a is admitted already"):
        kv.reserve("a", 1)


def test_an_unknown_session_cannot_be_released() -> None:
    with pytest.raises(InternalError, match="x is not admitted"):
        pool(1).release("x")


@pytest.mark.parametrize("length", [-1, 4])
def test_truncation_only_shortens(length: int) -> None:
    kv = pool(10)
    kv.reserve("a", 5)
    kv["a"].length = 3
    with pytest.raises(InternalError, match="cannot truncate 3 tokens"):
        kv["a"].truncate(length)
    assert kv["a"].length == 3


def grown(base: int, tree: Tree) -> Slab:
    """A slab whose every token's keys and values are its slot's number, with a tree behind `base` tokens."""
    kv = pool(20)
    kv.reserve("a", 20)
    slab = kv["a"]
    slab.keys[:], slab.values[:] = torch.arange(20.0)[:, None], torch.arange(20.0)[:, None]
    slab.grow(base, None)
    slab.grow(len(tree), None if tree.is_chain else tree)
    return slab


def slots(slab: Slab) -> list[float]:
    """What each kept token holds, the same in every layer, head and column."""
    kept = [part[..., : slab.length, :].movedim(-2, 0).flatten(1) for part in (slab.keys, slab.values)]
    assert all(bool((part == part[:, :1]).all()) for part in kept)
    assert torch.equal(kept[0][:, 0], kept[1][:, 0])
    numbers: list[float] = kept[0][:, 0].tolist()
    return numbers


FORKED = Tree((-1, 0, 0, 2, 1, 3))


@pytest.mark.parametrize("path", [(), (0,), (0, 1), (0, 2), (0, 1, 4), (0, 2, 3, 5)])
def test_a_kept_path_lies_behind_the_base_and_the_rest_is_gone(path: tuple[int, ...]) -> None:
    slab = grown(7, FORKED)
    slab.keep(7, path)
    assert slots(slab) == [*range(7), *(7 + node for node in path)]
    assert slab.tree is None


@pytest.mark.parametrize(("base", "path"), [(7, (1,)), (7, (0, 3)), (7, (0, 1, 2)), (7, (0, 6)), (6, (0,)), (8, (0,))])
def test_what_is_no_path_of_the_last_chunk_is_refused(base: int, path: tuple[int, ...]) -> None:
    slab = grown(7, FORKED)
    with pytest.raises(InternalError, match="no path"):
        slab.keep(base, path)
    assert slab.length == 13
    assert slab.tree == FORKED


def test_of_a_chain_a_path_is_its_beginning() -> None:
    slab = grown(7, Tree.chain(4))
    slab.keep(7, (0, 1))
    assert slots(slab) == list(range(9))
    with pytest.raises(InternalError, match="no path"):
        slab.keep(7, (1,))
    with pytest.raises(InternalError, match="no path"):
        slab.keep(10, ())


def test_of_a_tree_no_more_than_the_trunk_survives_truncation() -> None:
    slab = grown(7, FORKED)
    with pytest.raises(InternalError, match="cannot truncate 13 tokens, 9 of them a chain, to 10"):
        slab.truncate(10)
    slab.truncate(9)
    assert (slab.length, slab.tree) == (9, None)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=40))
def test_whatever_comes_and_goes_the_slabs_stay_within_the_budget(moves: list[tuple[int, int]]) -> None:
    kv = pool(20)
    held: dict[str, int] = {}
    for number, capacity in moves:
        name = f"s{number}"
        if name in held:
            kv.release(name)
            del held[name]
        else:
            fits = sum(held.values()) + capacity <= 20
            assert kv.reserve(name, capacity) == fits
            if fits:
                held[name] = capacity
