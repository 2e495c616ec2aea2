"""The bytes of a body are read no further than they may go."""

from collections.abc import AsyncIterator

import pytest

from gateway.http.body import read_body
from specdec.errors import MessageTooLarge


class Chunks:
    """A body in pieces that counts how many were read."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            yield chunk


async def test_a_body_within_the_limit_is_read_whole() -> None:
    assert await read_body(aiter(Chunks(b"ab", b"cd")), "4", 4) == b"abcd"


async def test_a_body_that_declares_too_much_is_not_read_at_all() -> None:
    chunks = Chunks(b"ab")
    with pytest.raises(MessageTooLarge):
        await read_body(aiter(chunks), "5", 4)
    assert chunks.read == 0


async def test_a_body_that_grows_too_large_is_read_no_further() -> None:
    chunks = Chunks(b"ab", b"cd", b"e", b"f", b"g")
    with pytest.raises(MessageTooLarge):
        await read_body(aiter(chunks), None, 4)
    assert chunks.read == 3
