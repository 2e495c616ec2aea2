"""Messages about blocks of KV, between the verifier and the process of its target. This module does not import vLLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class SharedKv:
    """Blocks of KV that a target exchanges."""

    fingerprint: str
    """Fingerprint of the model and of the layout of its KV. Only targets with equal ones exchange blocks."""
    block_tokens: int
    """Number of tokens in a block of vLLM."""
    token_bytes: int
    """Bytes of KV of one token on all ranks together."""


class Find(NamedTuple):
    """Question how many of the blocks with these hashes, from the first, have KV."""

    number: int
    hashes: Sequence[bytes]


class Read(NamedTuple):
    """Request for the KV of consecutive blocks."""

    number: int
    hashes: Sequence[bytes]


class Write(NamedTuple):
    """Checked KV of the last blocks of a sequence."""

    number: int
    hashes: Sequence[bytes]
    """Hashes of the sequence's blocks from its first."""
    values: Sequence[Bytes]
    """KV of the last blocks, one row of bytes for each."""


Question = Find | Read | Write


class KvAnswer(NamedTuple):
    """Answer to the question with the same number."""

    number: int
    held: int = 0
    """Number of blocks of the question, from the first, that have KV."""
    full: bool = False
    """Whether there was no room for all values of a `Write`."""
    value: Bytes | None = None
    """KV of the blocks of a `Read`; None if they have none now."""


class BlockLoad(NamedTuple):
    """KV to copy to blocks of vLLM."""

    request: str
    block_ids: Sequence[int]
    values: Sequence[Bytes]
    """One row of bytes for each block, of all ranks."""
    last: bool
    """Whether this is the last part of the request's load."""


class BlockCopy(NamedTuple):
    """Blocks of vLLM to copy for the question with this number."""

    number: int
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Transfers:
    """Copies that each worker begins in one pass."""

    loads: Sequence[BlockLoad] = ()
    copies: Sequence[BlockCopy] = ()


@dataclass(frozen=True, slots=True)
class Copied:
    """Copies that workers have done: for each number, the bytes of each rank, one row for each block."""

    parts: Mapping[int, Mapping[int, Bytes]] = field(default_factory=dict)

    def joined(self, other: "Copied") -> "Copied":
        """Return the copies of both."""
        numbers = self.parts.keys() | other.parts.keys()
        return Copied({each: {**self.parts.get(each, {}), **other.parts.get(each, {})} for each in numbers})
