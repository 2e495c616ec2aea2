"""Vocabularies: the fingerprint that identifies a tokenizer, and the tokens that two vocabularies share.

A draft in another vocabulary is usable if its tokens are also in the target's vocabulary: token-level intersection
(TLI; Timor et al. 2025, arXiv 2502.05202).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 in hex over the (id, token) pairs, including added tokens, in the order of ids.

    Padding rows of the model's matrix do not count.
    """
    digest = hashlib.sha256()
    for token, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{index}:{len(token)}:{token}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Vocabulary:
    """Bytes of each token of a tokenizer."""

    tokens: tuple[bytes, ...]
    """Entry i holds the bytes of id i, or the name of a special token; empty if no text is written with the id."""
    special: frozenset[int]
    """Ids of the special tokens, which do not stand for text."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex over `special` and `tokens`."""
        digest = hashlib.sha256(repr(sorted(self.special)).encode())
        for token in self.tokens:
            digest.update(b"%d:" % len(token) + token)
        return digest.hexdigest()

    @cached_property
    def ids(self) -> Mapping[tuple[bool, bytes], int]:
        """The id of each token, by whether it is special and its bytes.

        If several ids have the same bytes, the last one wins: vocabularies begin with single bytes, which tokenizers do
        not use when a later token has the same byte.
        """
        return {(index in self.special, token): index for index, token in enumerate(self.tokens) if token}

    def shared(self, other: "Vocabulary") -> dict[int, int]:
        """Map each id whose token `other` also has to the id there."""
        return {mine: other.ids[token] for token, mine in self.ids.items() if token in other.ids}

    def overlap(self, other: "Vocabulary") -> float:
        """Shared tokens divided by the size of the smaller vocabulary (overlap coefficient), in 0..1."""
        smaller = min(len(self.ids), len(other.ids))
        return len(self.shared(other)) / smaller if smaller else 0.0
