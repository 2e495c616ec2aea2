"""A block's keys and values as one byte string that identifies itself: header, payload, checksum.

    "SDKV" | version u32 | dtype 8s | layers, heads, tokens, width u32 | chain hash 32s | bytes u64 | payload | checksum

Numbers are little-endian. The chain hash comes from `specdec.rules.blocks`, so it identifies the model, the domain and
every token up to the end of the block. The checksum is a 16-byte BLAKE2b over all bytes before it; it detects
corruption, but not a forged value.
"""

import hashlib
import struct
from enum import StrEnum

import torch
from torch import Tensor

from specdec.engine.kv.layout import KvLayout

_HEADER = struct.Struct("<4sI8s4I32sQ")
_MAGIC = b"SDKV"
_VERSION = 1
_SUM_BYTES = 16


class Flaw(StrEnum):
    """Reason why a value is not the expected block."""

    SHORT = "short"
    """The value is truncated."""
    CORRUPT = "corrupt"
    """The value is damaged, or is not a framed block."""
    FOREIGN = "foreign"
    """The value is intact, but belongs to another model, domain, version or sequence."""


def frame(layout: KvLayout, block: bytes, kv: Tensor) -> bytes:
    """Frame the result of `NativeEngine.export_known` for the block with chain hash `block`."""
    body = _header(layout, block, kv.shape[2]) + kv.view(torch.uint8).numpy().tobytes()
    return body + _checksum(body)


def frame_bytes(layout: KvLayout, tokens: int) -> int:
    """Number of bytes of a framed block of `tokens` tokens."""
    return _HEADER.size + tokens * layout.token_bytes + _SUM_BYTES


def unframe(layout: KvLayout, block: bytes, tokens: int, value: bytearray) -> Tensor | Flaw:
    """The keys and values in `value`, sharing its memory, or the flaw if it is not the block of chain hash `block`."""
    if len(value) < _HEADER.size:
        return Flaw.SHORT
    header = bytes(value[: _HEADER.size])
    magic, *_, payload = _HEADER.unpack(header)
    if magic != _MAGIC:
        return Flaw.CORRUPT
    if len(value) < _HEADER.size + payload + _SUM_BYTES:
        return Flaw.SHORT
    if _checksum(memoryview(value)[:-_SUM_BYTES]) != value[-_SUM_BYTES:]:
        return Flaw.CORRUPT
    if header != _header(layout, block, tokens):
        return Flaw.FOREIGN
    count = payload // layout.dtype.itemsize
    flat = torch.frombuffer(value, dtype=layout.dtype, count=count, offset=_HEADER.size)
    return flat.view(layout.layers, layout.heads, tokens, -1)


def _header(layout: KvLayout, block: bytes, tokens: int) -> bytes:
    dtype = str(layout.dtype).removeprefix("torch.").encode()
    width = layout.key_width + layout.value_width
    shape = (layout.layers, layout.heads, tokens, width)
    return _HEADER.pack(_MAGIC, _VERSION, dtype, *shape, block, tokens * layout.token_bytes)


def _checksum(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_SUM_BYTES).digest()
