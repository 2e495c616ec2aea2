"""Blocks of keys and values in a Redis of their own: opaque values under hash-chain keys, any of which may be gone.

    kv:1:{fingerprint}:{domain}:{chain hash}   one block, until `ttl` seconds after its last use
    kv:1:used:{tenant}                         the tenant's ledger (see gateway.kv.lua)
    kv:1:full:{tenant}                         there when a block found no room, not long ago

The values of a tenant's blocks never take more than its budget, of all its domains together. Should the server evict
the ledger before older blocks, which sampled LRU may do, those are not counted until they are used again or expire.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.kv import lua
from specdec.errors import SessionStoreDown
from specdec.rules import blocks

_FULL_MS = 60_000
"""How long nobody tries to store more for a tenant that had no room."""


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block is kept, and what it is of."""

    key: str
    start: int
    stop: int


class Chain:
    """The whole blocks of one growing sequence."""

    def __init__(self, fingerprint: str, domain: str, block_tokens: int) -> None:
        """`block_tokens` is a multiple of `specdec.rules.blocks.BLOCK_TOKENS`."""
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
        """Keep a block; False when that would take the domain's tenant over its budget."""

    async def touch(self, domain: str, keys: Sequence[str], sizes: Sequence[int]) -> None:
        """Keep consecutive blocks of those sizes for longer: they are used."""

    async def drop(self, key: str) -> None:
        """Forget a block."""

    async def is_full(self, domain: str) -> bool:
        """Whether the domain's tenant had no room for a block of late."""

    async def close(self) -> None:
        """Let the connection go."""


class RedisBlocks:
    """A BlockStore in Redis."""

    def __init__(self, client: Redis, ttl: float, budget_bytes: int) -> None:
        """`ttl` seconds a block lives unused; `budget_bytes` a tenant's blocks may take."""
        self._client = client
        self._ttl_ms = round(ttl * 1000)
        self._budget = budget_bytes
        self._put = client.register_script(lua.PUT)
        self._touch = client.register_script(lua.TOUCH)

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
        keys = (key, _of("used", domain), _of("full", domain))
        return bool(await _answered(self._put(keys, (value, self._ttl_ms, self._budget, _FULL_MS))))

    async def touch(self, domain: str, keys: Sequence[str], sizes: Sequence[int]) -> None:
        """See BlockStore."""
        last_first = (_of("used", domain), *reversed(keys))
        await _answered(self._touch(last_first, (self._ttl_ms, *reversed(sizes))))

    async def drop(self, key: str) -> None:
        """See BlockStore."""
        await _answered(self._client.delete(key))

    async def is_full(self, domain: str) -> bool:
        """See BlockStore."""
        return bool(await _answered(self._client.exists(_of("full", domain))))

    async def close(self) -> None:
        """Let the connection go."""
        await self._client.aclose()


def _of(what: str, domain: str) -> str:
    tenant, _, _ = domain.partition(".")
    return f"kv:1:{what}:{tenant}"


async def _answered(answer: Any) -> Any:
    try:
        return await answer
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the store of blocks does not answer: {error}") from error
