"""Hashes of token blocks: two blocks with one hash end the same prefix, under the same model and in the same domain."""

import hashlib
from array import array
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Tokens of one block, the unit in which keys and values are shared."""


def root(fingerprint: str, domain: str = "") -> bytes:
    """What the first block of a sequence is chained to, 32 bytes.

    Args:
        fingerprint: of the model that computes the keys and values.
        domain: sequences of different domains share nothing, so no caller can tell from the clock what another sent.
    """
    return hashlib.sha256(f"{len(fingerprint)}:{fingerprint}{domain}".encode()).digest()


def link(parent: bytes, block: Sequence[int]) -> bytes:
    """The hash of a block behind the block (or root) of hash `parent`; ids are below 2³¹."""
    return hashlib.sha256(parent + array("i", block).tobytes()).digest()


def chain(start: bytes, tokens: Sequence[int]) -> list[bytes]:
    """The hashes of the whole blocks of `tokens`, in order; `start` is the root, or the hash they continue."""
    hashes: list[bytes] = []
    for begin in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        start = link(start, tokens[begin : begin + BLOCK_TOKENS])
        hashes.append(start)
    return hashes
