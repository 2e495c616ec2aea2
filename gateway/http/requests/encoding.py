"""Bodies that arrive compressed."""

import zlib
from collections.abc import AsyncIterator

from specdec.errors import EncodingUnsupported, FieldInvalid

_READABLE = ("gzip", "x-gzip", "deflate")
_PIECE = 64 * 1024
"""Most bytes that are decompressed at once, so that little is read of a body that grows too large."""


def decoded(chunks: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    """The chunks of a body without its `Content-Encoding`.

    Raises:
        EncodingUnsupported: the encoding is not gzip or deflate.
        FieldInvalid: the bytes are not what the encoding says; raised while they are read.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return chunks
    if name not in _READABLE:
        raise EncodingUnsupported(f"Content-Encoding must be gzip, deflate or identity, got {encoding!r}")
    return _inflated(chunks, name)


async def _inflated(chunks: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    inflating = zlib.decompressobj(zlib.MAX_WBITS | 32)  # a gzip or a zlib header, whichever comes
    try:
        async for chunk in chunks:
            rest = chunk
            while rest:
                yield inflating.decompress(rest, _PIECE)
                rest = inflating.unconsumed_tail
    except zlib.error as error:
        raise FieldInvalid(f"the body is not valid {encoding}: {error}") from error
    if not inflating.eof:
        raise FieldInvalid(f"the body is not valid {encoding}: it is cut short")
