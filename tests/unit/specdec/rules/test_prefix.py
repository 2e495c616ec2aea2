"""A prefix is identified by its tokens, however it was assembled."""

from hypothesis import given
from hypothesis import strategies as st

from specdec.rules.prefix import PrefixHash

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(TOKENS, TOKENS)
def test_extending_is_hashing_the_whole(first: list[int], second: list[int]) -> None:
    assert PrefixHash(first).extended(second).value == PrefixHash(first + second).value


@given(TOKENS, st.integers(0, 2**31 - 1))
def test_extending_leaves_the_shorter_prefix_as_it_is(tokens: list[int], token: int) -> None:
    prefix = PrefixHash(tokens)
    before = prefix.value
    assert prefix.extended([token]).value != before
    assert prefix.value == before


@given(TOKENS, TOKENS)
def test_other_tokens_have_another_hash(first: list[int], second: list[int]) -> None:
    assert (PrefixHash(first).value == PrefixHash(second).value) == (first == second)


def test_the_hash_is_64_bits_and_never_changes() -> None:
    assert PrefixHash().value == 0xB4B2797457A0A6E4
    assert PrefixHash([1, 2, 3]).value == 0xB4FB5A8DE61ABA77
    assert 0 <= PrefixHash([5]).value < 2**64
