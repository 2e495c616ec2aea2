"""Chunks of many sessions, joined into the one packed row of tokens that a forward pass reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.errors import InternalError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that extend one session by `len(tokens)` positions of KV."""

    session: str
    tokens: Sequence[int]
    """At least one; the first one's position is the session's length."""
    logits: int
    """How many of the LAST tokens need logits, 0..len(tokens)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One packed row; T tokens of all chunks, chunk after chunk."""

    tokens: list[int]
    """[T]"""
    positions: list[int]
    """[T], absolute in each token's own session."""
    counts: list[int]
    """Tokens of each chunk; they add up to T."""
    keep: list[int]
    """Indices into the T tokens of those that need logits, ascending."""


def pack(chunks: Sequence[Chunk], lengths: Sequence[int], vocab_size: int) -> Batch:
    """Join `chunks`; `lengths` has each chunk's session's tokens with KV.

    Raises:
        InternalError: a session twice, no token, an id outside the vocabulary, more logits than tokens.
    """
    tokens: list[int] = []
    positions: list[int] = []
    counts: list[int] = []
    keep: list[int] = []
    if len({chunk.session for chunk in chunks}) != len(chunks):
        raise InternalError("a session has two chunks in one forward pass")
    for chunk, start in zip(chunks, lengths, strict=True):
        _check(chunk, vocab_size)
        count = len(chunk.tokens)
        tokens += chunk.tokens
        positions += range(start, start + count)
        counts.append(count)
        keep += range(len(tokens) - chunk.logits, len(tokens))
    return Batch(tokens, positions, counts, keep)


def _check(chunk: Chunk, vocab_size: int) -> None:
    if not chunk.tokens:
        raise InternalError(f"session {chunk.session}: a chunk without tokens")
    if not 0 <= chunk.logits <= len(chunk.tokens):
        raise InternalError(f"session {chunk.session}: {chunk.logits} logits wanted of {len(chunk.tokens)} tokens")
    if min(chunk.tokens) < 0 or max(chunk.tokens) >= vocab_size:
        raise InternalError(f"session {chunk.session}: a token id outside 0..{vocab_size - 1}")
