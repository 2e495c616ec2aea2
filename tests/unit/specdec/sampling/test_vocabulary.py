"""Two tokenizers have one fingerprint iff they give the same tokens the same ids."""

import pytest

from specdec.sampling.vocabulary import fingerprint

VOCABULARY = {"a": 0, "b": 1, "ab": 2}


def test_the_order_of_the_mapping_does_not_matter() -> None:
    assert fingerprint(VOCABULARY) == fingerprint(dict(reversed(VOCABULARY.items())))


@pytest.mark.parametrize(
    "other",
    [{"a": 0, "b": 1}, {"a": 0, "b": 2, "ab": 1}, {"a": 0, "b": 1, "aB": 2}, {"a": 0, "b": 1, "ab": 3}, {}],
)
def test_any_difference_shows(other: dict[str, int]) -> None:
    assert fingerprint(VOCABULARY) != fingerprint(other)


def test_a_token_cannot_imitate_two() -> None:
    assert fingerprint({"x": 0, "y": 1}) != fingerprint({"x\n1:1:y": 0})


def test_it_is_sha_256_in_hex() -> None:
    assert len(fingerprint(VOCABULARY)) == 64
    assert int(fingerprint(VOCABULARY), 16) > 0
