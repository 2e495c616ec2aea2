"""Vocabularies: the fingerprint that shows whether two tokenizers are the same, and the tokens that two have in common.

A draft in another vocabulary is of use where its tokens are also the target's: token-level intersection (TLI; Timor et
al. 2025, arXiv 2502.05202).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 in hex over the (id, token) pairs, those of added tokens included, in the order of ids.

    Padding rows of the model's matrix do not count.
    """
    digest = hashlib.sha256()
    for token, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{index}:{len(token)}:{token}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Vocabulary:
    """What each token of a tokenizer stands for."""

    tokens: tuple[bytes, ...]
    """Entry i holds the bytes of id i, of a special token its name; empty where no text is written with the id."""
    special: frozenset[int]
    """Ids of the special tokens, which are no text."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex of all of it."""
        digest = hashlib.sha256(repr(sorted(self.special)).encode())
        for token in self.tokens:
            digest.update(b"%d:" % len(token) + token)
        return digest.hexdigest()

    @cached_property
    def ids(self) -> Mapping[tuple[bool, bytes], int]:
        """The id of each token, by whether it is special and its bytes.

        Of ids with the same bytes it is the last: vocabularies begin with single bytes, which text is not written with
        where a later token has the same byte.
        """
        return {(index in self.special, token): index for index, token in enumerate(self.tokens) if token}

    def shared(self, other: "Vocabulary") -> dict[int, int]:
        """For each id of a token that `other` has too, the id there."""
        return {mine: other.ids[token] for token, mine in self.ids.items() if token in other.ids}

    def overlap(self, other: "Vocabulary") -> float:
        """Tokens in common over those of the smaller vocabulary (overlap coefficient), in 0..1."""
        smaller = min(len(self.ids), len(other.ids))
        return len(self.shared(other)) / smaller if smaller else 0.0
