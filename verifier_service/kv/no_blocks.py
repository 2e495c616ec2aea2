"""A target whose keys and values stay where they are: nothing is found, given out or taken in."""

from collections.abc import AsyncIterable, Sequence

from specdec.wire.kv import KvSpan
from verifier_service.kv.blocks import NO_ROOM, Restored


class NoBlocks:
    """As `KvBlocks`, with no block of any sequence."""

    async def find(self, tokens: Sequence[int], cache_salt: str) -> int:
        """0: what the engine keeps for later sequences cannot be read."""
        return 0

    async def export(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        """Empty, as for a block that has no KV."""
        return b""

    async def restore(self, span: KvSpan, values: AsyncIterable[bytearray]) -> Restored:
        """Take none of the values."""
        return Restored(0, NO_ROOM)

    def longest_value(self, block_tokens: int) -> int:
        """0 bytes."""
        return 0
