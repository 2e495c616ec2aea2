"""The KV pool keeps to its byte budget and knows its sessions."""

import pytest

from specdec.engine.kv.pool import KvMemory, KvPool
from specdec.errors import InternalError
from tests.unit.specdec.engine.kv_pools import LAYOUT, PAGE, PAGE_BYTES, STORES, Pool, pages, text


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


def test_a_session_is_admitted_once_and_only_into_memory(pool: Pool) -> None:
    kv = pool(20)
    kv.admit("a", 100)
    with pytest.raises(InternalError, match="a is admitted already"):
        kv.admit("a", 100)
    assert not pool(0).admit("a", 1, [1])


def test_an_unknown_session_cannot_be_released(pool: Pool) -> None:
    with pytest.raises(InternalError, match="x is not admitted"):
        pool(1).release("x")
