"""Blocks of keys and values as they come over the wire: values in pieces, each of a size that is known before."""

from collections.abc import AsyncIterator

from protos.verifier.v1 import verifier_pb2 as pb
from specdec.errors import FieldInvalid
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.wire.tokens import tokens_from_bytes
from verifier_service.kv.blocks import Span

PIECE_BYTES = 2**20
"""Of a value in one message."""


def span_from_pb(message: pb.KvSpan) -> Span:
    """The span.

    Raises:
        FieldInvalid: it is not of whole blocks, or has none.
    """
    tokens = tuple(tokens_from_bytes(message.tokens))
    if message.block_tokens < 1 or message.block_tokens % BLOCK_TOKENS or message.start % BLOCK_TOKENS:
        raise FieldInvalid(f"blocks begin and end at multiples of {BLOCK_TOKENS} tokens", "span")
    if len(tokens) <= message.start or (len(tokens) - message.start) % message.block_tokens:
        raise FieldInvalid(f"{len(tokens) - message.start} tokens are no blocks of {message.block_tokens}", "span")
    return Span(tokens, message.cache_salt, message.start, message.block_tokens)


async def values_from_pb(
    first: pb.RestoreKvRequest, rest: AsyncIterator[pb.RestoreKvRequest], count: int, longest: int
) -> AsyncIterator[bytearray]:
    """The values, `count` at most; of one that is over `longest` bytes no more is kept than shows it."""
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
