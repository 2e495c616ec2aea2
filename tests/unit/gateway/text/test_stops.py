"""Stop strings in text that arrives in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.output import find_stop, held_length


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abcdef", ("cd",), (2, "cd")),
        ("abcdef", ("xy",), None),
        ("abcdef", (), None),
        ("abcdef", ("ef", "cd"), (2, "cd")),
        ("abcdef", ("cdef", "d"), (3, "d")),
        ("abcdef", ("d", "bcd"), (1, "bcd")),
        ("aaaa", ("aa",), (0, "aa")),
    ],
)
def test_the_stop_that_is_complete_first_is_found(
    text: str, stops: tuple[str, ...], expected: tuple[int, str] | None
) -> None:
    assert find_stop(text, stops) == expected


@pytest.mark.parametrize(
    ("text", "stops", "length"),
    [
        ("abc", ("cd",), 1),
        ("abc", ("bcd", "cx"), 2),
        ("abc", ("xyz",), 0),
        ("abc", (), 0),
        ("abab", ("ababc",), 4),
        ("aba", ("ababc",), 3),
        ("abcaba", ("ababc",), 3),
        ("ab", ("ab",), 0),
    ],
)
def test_the_longest_possible_beginning_is_held(text: str, stops: tuple[str, ...], length: int) -> None:
    assert held_length(text, stops) == length


@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_held_text_is_exactly_what_more_text_could_make_a_stop(text: str, stops: list[str]) -> None:
    begun = [n for n in range(1, len(text) + 1) if any(s.startswith(text[-n:]) and len(s) > n for s in stops)]
    assert held_length(text, stops) == max(begun, default=0)
