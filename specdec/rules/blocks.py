"""Hashes of token blocks. Equal hashes mean equal prefixes, computed by the same model in the same domain."""

import hashlib
from array import array
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Number of tokens in one block, the unit in which keys and values are shared."""


def root(fingerprint: str, domain: str = "") -> bytes:
    """The hash that the first block of a sequence is chained to, 32 bytes.

    Args:
        fingerprint: the fingerprint of the model that computes the keys and values.
        domain: sequences of different domains share nothing, so that response times do not tell a caller which prompts
            another caller has sent.
    """
    return hashlib.sha256(f"{len(fingerprint)}:{fingerprint}{domain}".encode()).digest()


def adapter_end(fingerprint: str) -> str:
    """Suffix of the domain of an adapter's sequences, given its fingerprint. No other sequence has a domain with this
    suffix."""
    return f".{hashlib.sha256(fingerprint.encode()).hexdigest()[:32]}"


def link(parent: bytes, block: Sequence[int]) -> bytes:
    """The hash of a block that follows the block or root with hash `parent`; token ids are below 2³¹."""
    return hashlib.sha256(parent + array("i", block).tobytes()).digest()


def chain(start: bytes, tokens: Sequence[int]) -> list[bytes]:
    """The hashes of the whole blocks of `tokens`, in order.

    Args:
        start: the root, or the hash of the block before `tokens`.
        tokens: token ids; tokens after the last whole block have no hash.
    """
    hashes: list[bytes] = []
    for begin in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        start = link(start, tokens[begin : begin + BLOCK_TOKENS])
        hashes.append(start)
    return hashes
