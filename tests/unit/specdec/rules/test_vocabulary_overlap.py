"""Tokens that two vocabularies share."""

import pytest

from specdec.sampling.vocabulary import Vocabulary

TARGET = Vocabulary((b"<end>", b"a", b"b", b"ab", b"", b"a"), frozenset({0}))
DRAFTER = Vocabulary((b"b", b"a", b"<end>", b"abc", b""), frozenset({2}))


def test_tokens_of_equal_bytes_are_shared_and_of_several_the_last() -> None:
    assert TARGET.shared(DRAFTER) == {0: 2, 2: 0, 5: 1}


def test_a_special_token_is_not_the_text_of_its_name() -> None:
    written = Vocabulary((b"<end>", b"a"), frozenset())
    assert TARGET.shared(written) == {5: 1}


def test_the_overlap_is_the_share_of_the_smaller_vocabulary() -> None:
    assert TARGET.overlap(DRAFTER) == DRAFTER.overlap(TARGET) == pytest.approx(3 / 4)
    assert TARGET.overlap(Vocabulary((b"z",), frozenset())) == 0.0
    assert TARGET.overlap(Vocabulary((), frozenset())) == 0.0


def test_the_digest_tells_vocabularies_apart() -> None:
    others = [
        Vocabulary(TARGET.tokens, frozenset()),
        Vocabulary(TARGET.tokens[::-1], TARGET.special),
        Vocabulary((b"<end>a", *TARGET.tokens[2:]), TARGET.special),
    ]
    assert len({each.digest for each in (TARGET, *others)}) == 4
    assert Vocabulary(TARGET.tokens, TARGET.special).digest == TARGET.digest
