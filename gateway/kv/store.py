"""Blocks of keys and values in a Redis of their own: opaque values under hash-chain keys, any of which may be gone.

    kv:1:{fingerprint}:{domain}:{chain hash}   one block, for `ttl` seconds
    kv:1:used:{domain}                         bytes the domain has written since the counter began, for as long

A domain writes no more than its budget while its counter lives, so it never has more than twice that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from specdec import blocks
from specdec.errors import SessionStoreDown


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block is kept, and what it is of."""

    key: str
    start: int
    stop: int


class Chain:
    """The whole blocks of one growing sequence."""

    def __init__(self, fingerprint: str, domain: str, block_tokens: int) -> None:
        """`block_tokens` is a multiple of `specdec.blocks.BLOCK_TOKENS`."""
        self._prefix = f"kv:1:{fingerprint}:{domain}"
        self._size = block_tokens
        self._end = blocks.root(fingerprint, domain)
        self._done = 0

    def grow(self, tokens: Sequence[int]) -> list[Block]:
        """The blocks that are whole now and were not before; `tokens` is all of the sequence."""
        whole = len(tokens) // self._size * self._size
        links = blocks.chain(self._end, tokens[self._done : whole])
        ends = links[self._size // blocks.BLOCK_TOKENS - 1 :: self._size // blocks.BLOCK_TOKENS]
        starts = range(self._done, whole, self._size)
        if ends:
            self._end, self._done = ends[-1], whole
        return [
            Block(f"{self._prefix}:{end.hex()}", start, start + self._size)
            for start, end in zip(starts, ends, strict=True)
        ]


class BlockStore(Protocol):
    """Where blocks are kept; every method raises SessionStoreDown when it does not answer."""

    async def sizes(self, keys: Sequence[str]) -> list[int]:
        """Bytes of each; 0 of what is not there."""

    async def get(self, key: str) -> bytes:
        """A block; empty when it is not there."""

    async def put(self, domain: str, key: str, value: bytes) -> bool:
        """Keep a block; False when that would take its domain over its budget."""

    async def drop(self, key: str) -> None:
        """Forget a block."""

    async def is_full(self, domain: str) -> bool:
        """Whether the domain has used its budget up."""

    async def close(self) -> None:
        """Let the connection go."""


class RedisBlocks:
    """A BlockStore in Redis."""

    def __init__(self, client: Redis, ttl: float, budget_bytes: int) -> None:
        """`ttl` seconds a block lives; `budget_bytes` a domain may write in that time."""
        self._client = client
        self._ttl_ms = round(ttl * 1000)
        self._budget = budget_bytes

    async def sizes(self, keys: Sequence[str]) -> list[int]:
        """See BlockStore."""
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.strlen(key)
            found: list[int] = await _answered(pipe.execute())
            return found

    async def get(self, key: str) -> bytes:
        """See BlockStore."""
        return await _answered(self._client.get(key)) or b""

    async def put(self, domain: str, key: str, value: bytes) -> bool:
        """See BlockStore."""
        used = f"kv:1:used:{domain}"
        async with self._client.pipeline() as pipe:
            pipe.set(used, 0, px=self._ttl_ms, nx=True)
            pipe.incrby(used, len(value))
            total = (await _answered(pipe.execute()))[1]
        if total > self._budget:
            return False
        await _answered(self._client.set(key, value, px=self._ttl_ms))
        return True

    async def drop(self, key: str) -> None:
        """See BlockStore."""
        await _answered(self._client.delete(key))

    async def is_full(self, domain: str) -> bool:
        """See BlockStore."""
        return int(await _answered(self._client.get(f"kv:1:used:{domain}")) or 0) > self._budget

    async def close(self) -> None:
        """Let the connection go."""
        await self._client.aclose()


async def _answered(answer: Any) -> Any:
    try:
        return await answer
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the store of blocks does not answer: {error}") from error
