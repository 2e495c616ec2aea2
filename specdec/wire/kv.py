"""Blocks of keys and values on hop 1: the sequences that they belong to, and their values in bounded pieces."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from specdec.errors import FieldInvalid
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.wire.codec import Codec
from specdec.wire.tokens import TOKENS

_PIECE_BYTES = 2**20
"""Maximum number of value bytes in one message."""


@dataclass(frozen=True, slots=True)
class KvSpan:
    """Consecutive blocks of equal length, each a multiple of the engine's block size."""

    tokens: tuple[int, ...]
    """Sequence up to the end of the last block."""
    cache_salt: str
    start: int
    """Position of the first block, in tokens."""
    block_tokens: int

    @property
    def ends(self) -> range:
        return range(self.start + self.block_tokens, len(self.tokens) + 1, self.block_tokens)


_SPAN = Codec(KvSpan, pb.KvSpan, tokens=TOKENS)


def pieces(value: bytes) -> Iterator[bytes]:
    """Yield a value in pieces that fit a message; none for an empty value."""
    return (value[begin : begin + _PIECE_BYTES] for begin in range(0, len(value), _PIECE_BYTES))


def restore_to_pb(span: KvSpan, values: Sequence[bytes]) -> Iterator[pb.RestoreKvRequest]:
    """Yield the messages with the values of a span, one value for each block, in order."""
    yield pb.RestoreKvRequest(span=_SPAN.to_pb(span))
    for value in values:
        for begin in range(0, max(len(value), 1), _PIECE_BYTES):
            end = begin + _PIECE_BYTES
            yield pb.RestoreKvRequest(data=value[begin:end], ends_block=end >= len(value))


def span_from_pb(message: pb.KvSpan) -> KvSpan:
    """Return the span of a message.

    Raises:
        FieldInvalid: it is not of whole blocks, or has none.
    """
    span = _SPAN.from_pb(message)
    if message.block_tokens < 1 or message.block_tokens % BLOCK_TOKENS or message.start % BLOCK_TOKENS:
        raise FieldInvalid(f"blocks begin and end at multiples of {BLOCK_TOKENS} tokens", "span")
    if len(span.tokens) <= message.start or (len(span.tokens) - message.start) % message.block_tokens:
        raise FieldInvalid(f"{len(span.tokens) - message.start} tokens are no blocks of {message.block_tokens}", "span")
    return span


async def values_from_pb(
    first: pb.RestoreKvRequest, rest: AsyncIterator[pb.RestoreKvRequest], count: int, longest: int
) -> AsyncIterator[bytearray]:
    """Yield up to `count` values. A value longer than `longest` bytes is cut to `longest` + 1 bytes."""
    value, message = bytearray(), first
    while count:
        value += message.data[: longest + 1 - len(value)]
        if message.ends_block:
            yield value
            value, count = bytearray(), count - 1
        following = await anext(rest, None)
        if following is None:
            return
        message = following
