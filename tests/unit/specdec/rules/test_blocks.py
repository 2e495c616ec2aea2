"""The hash of a block identifies the whole prefix up to its end."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from specdec.rules.blocks import BLOCK_TOKENS, chain, link, root

ids = st.integers(0, 2**31 - 1)


def test_the_hashes_are_the_same_everywhere_and_for_ever() -> None:
    assert root("f", "d") == hashlib.sha256(b"1:fd").digest()
    packed = b"".join(token.to_bytes(4, "little") for token in range(16))
    assert chain(root("f"), list(range(20))) == [hashlib.sha256(root("f") + packed).digest()]


def test_model_and_domain_part_the_chains() -> None:
    roots = [root("f"), root("g"), root("f", "a"), root("f", "b"), root("", "fa"), root("fa")]
    assert len(set(roots)) == len(roots)


@given(st.lists(ids, max_size=70), st.lists(ids, max_size=70))
def test_hashes_agree_as_far_as_the_tokens_do(one: list[int], other: list[int]) -> None:
    first, second = chain(root("f"), one), chain(root("f"), other)
    assert len(first) == len(one) // BLOCK_TOKENS
    for count, (left, right) in enumerate(zip(first, second, strict=False), 1):
        assert (left == right) == (one[: count * BLOCK_TOKENS] == other[: count * BLOCK_TOKENS])


@given(st.lists(ids, min_size=32, max_size=70))
def test_a_chain_can_be_continued_from_any_of_its_hashes(tokens: list[int]) -> None:
    whole = chain(root("f"), tokens)
    assert chain(whole[0], tokens[BLOCK_TOKENS:]) == whole[1:]
    assert link(whole[0], tokens[BLOCK_TOKENS : 2 * BLOCK_TOKENS]) == whole[1]
