"""The KV pool holds its byte budget and knows its sessions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.engine.kv_pool import KvLayout, KvPool
from specdec.errors import InternalError

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
