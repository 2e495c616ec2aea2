"""Rows of a sequence share one list of tokens, and each sees its own tokens."""

import pytest

from verifier_service.backends.batch_plan import TokenPrefix

PLACES = [
    0, 2, -1, -3, slice(None), slice(1, None), slice(None, -1), slice(0, 9), slice(-2, None), slice(None, None, 2),
    slice(None, None, -1),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_earlier_tokens_stay_as_they_were(place: int | slice) -> None:
    first = TokenPrefix([1, 2, 3])
    second = first.followed_by((4,))
    third = second.followed_by((5, 6))
    for prefix, tokens in ((first, [1, 2, 3]), (second, [1, 2, 3, 4]), (third, [1, 2, 3, 4, 5, 6])):
        assert (len(prefix), [*prefix], tuple(prefix[1:])) == (len(tokens), tokens, tuple(tokens[1:]))
        assert prefix[place] == tokens[place]


def test_two_continuations_do_not_mix() -> None:
    first = TokenPrefix([1])
    one, other = first.followed_by((2,)), first.followed_by((3,))
    assert ([*one.followed_by((4,))], [*other.followed_by((5,))]) == ([1, 2, 4], [1, 3, 5])


def test_the_list_is_shared() -> None:
    tokens = [1]
    TokenPrefix(tokens).followed_by((2,)).followed_by((3,))
    assert tokens == [1, 2, 3]


@pytest.mark.parametrize("place", [1, -2])
def test_a_token_outside_is_an_error(place: int) -> None:
    first = TokenPrefix([1])
    first.followed_by((2,))
    with pytest.raises(IndexError):
        first[place]
