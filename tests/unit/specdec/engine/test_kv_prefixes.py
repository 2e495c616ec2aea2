"""The KV pool shares computed prefixes between sessions, and keeps them after sessions have ended."""

from tests.unit.specdec.engine.kv_pools import PAGE, Pool, holds, pages, run, text

COPIED = "slabs"
"""The store that copies a prefix; the other one shares its pages."""


def test_a_session_begins_with_the_prefix_that_a_running_one_has_computed(pool: Pool) -> None:
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


def test_an_ended_sessions_blocks_serve_equal_prefixes_in_the_same_domain(pool: Pool, memory: str) -> None:
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


def test_a_prefix_to_copy_is_dropped_if_it_does_not_fit_with_the_session(pool: Pool, memory: str) -> None:
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


def test_writing_over_a_rolled_back_prefix_leaves_those_who_share_it_alone(pool: Pool) -> None:
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


def test_pages_of_ended_sessions_are_dropped_before_a_session_is_refused(pool: Pool) -> None:
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
