"""A block's key covers everything that the block depends on, and a sequence's keys do not change as it grows."""

from gateway.kv.store import SequenceBlocks
from specdec.rules.blocks import chain, root

TOKENS = tuple(range(200))


def keys(fingerprint: str = "f", domain: str = "d", tokens: tuple[int, ...] = TOKENS, size: int = 64) -> list[str]:
    return [block.key for block in SequenceBlocks(fingerprint, domain, size).grow(tokens)]


def test_a_sequence_has_the_same_blocks_however_it_grows() -> None:
    grown = SequenceBlocks("f", "d", 64)
    found = [block for stop in range(0, 201, 7) for block in grown.grow(TOKENS[:stop])]
    assert found == SequenceBlocks("f", "d", 64).grow(TOKENS)
    assert [(block.start, block.stop) for block in found] == [(0, 64), (64, 128), (128, 192)]
    assert grown.grow(TOKENS[:196]) == []


def test_tokens_after_the_stop_do_not_count() -> None:
    grown = SequenceBlocks("f", "d", 64)
    assert [block.stop for block in grown.grow(TOKENS, 127)] == [64]
    assert [block.stop for block in grown.grow(TOKENS, 128)] == [128]


def test_a_key_ends_in_the_hash_that_the_verifier_chains_too() -> None:
    assert [key.rpartition(":")[2] for key in keys()] == [end.hex() for end in chain(root("f", "d"), TOKENS)[3::4]]


def test_model_domain_and_every_token_before_the_end_tell_keys_apart() -> None:
    assert not set(keys()) & set(keys(fingerprint="g"))
    assert not set(keys()) & set(keys(domain="e"))
    assert not set(keys()) & set(keys(tokens=(9, *TOKENS[1:])))
    assert keys(tokens=(*TOKENS[:100], 9, *TOKENS[101:]))[0] == keys()[0]
