"""Store of KV blocks in a separate Redis: opaque values by block hash, any of which may be evicted at any time.

    kv:1:{fingerprint}:{domain}:{block hash}   one block, until `ttl` seconds after its last use
    kv:1:used:{tenant}                         the tenant's ledger: a sorted set of one entry "bytes key" for each block
    kv:1:full:{tenant}                         exists for a while after a block of the tenant found no room

The score of an entry is the time after which the block has certainly expired. The ledger is touched after each of its
blocks, so that a server with LRU eviction evicts it last.

The blocks of a tenant, over all its domains, never exceed its budget. If the server evicts the ledger before older
blocks, which sampled LRU can do, those blocks are not counted until they are used again or expire.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.config import KvSettings
from gateway.store import lua
from specdec.errors import SessionStoreDown
from specdec.rules import blocks

_NONCE = 12
"""Length in bytes of the random nonce before each value. One key is safe for up to 2**32 values."""
_FULL_MS = 60_000
"""Milliseconds without new blocks for a tenant that exceeded its budget."""


@dataclass(frozen=True, slots=True)
class Block:
    """Block of a sequence."""

    key: str
    """Key in the store."""
    start: int
    """Index of the block's first token in the sequence."""
    stop: int
    """Index after the block's last token."""


class SequenceBlocks:
    """Whole blocks of one growing token sequence, each keyed by the hash of every token up to its end."""

    def __init__(self, fingerprint: str, domain: str, block_tokens: int) -> None:
        """Args: block_tokens: block size in tokens, a multiple of `specdec.rules.blocks.BLOCK_TOKENS`."""
        self._prefix = f"kv:1:{fingerprint}:{domain}"
        self._size = block_tokens
        self._hash = blocks.root(fingerprint, domain)
        """Hash of the last whole block."""
        self._done = 0
        """Number of tokens in whole blocks."""

    def grow(self, tokens: Sequence[int], stop: int | None = None) -> list[Block]:
        """Return the blocks that became whole since the last call.

        Args:
            tokens: whole sequence.
            stop: number of leading tokens to consider; None considers all.
        """
        whole = (len(tokens) if stop is None else stop) // self._size * self._size
        hashes = blocks.chain(self._hash, tokens[self._done : whole])
        ends = hashes[self._size // blocks.BLOCK_TOKENS - 1 :: self._size // blocks.BLOCK_TOKENS]
        starts = range(self._done, whole, self._size)
        if ends:
            self._hash, self._done = ends[-1], whole
        return [
            Block(f"{self._prefix}:{end.hex()}", start, start + self._size)
            for start, end in zip(starts, ends, strict=True)
        ]


class BlockCipher:
    """AES-256-GCM encryption that binds each value to its name.

    A reader of the store's memory learns nothing, and modified values are detected.
    """

    def __init__(self, key: bytes) -> None:
        """Args: key: 32 bytes."""
        self._aead = AESGCM(key)

    def encrypt(self, name: str, value: bytes) -> bytes:
        """Encrypt a value for storage under a name."""
        nonce = os.urandom(_NONCE)
        return nonce + self._aead.encrypt(nonce, value, name.encode())

    def decrypt(self, name: str, stored: bytes) -> bytes:
        """Decrypt a stored value; return empty bytes if it was not encrypted for this name with this key."""
        try:
            return self._aead.decrypt(stored[:_NONCE], stored[_NONCE:], name.encode())
        except (InvalidTag, ValueError):
            return b""


class BlockStore:
    """Blocks in Redis. Every method raises SessionStoreDown if Redis does not answer."""

    def __init__(self, client: Redis, settings: KvSettings) -> None:
        self._client = client
        self._cipher = BlockCipher(bytes.fromhex(settings.key.get_secret_value())) if settings.key else None
        self._ttl_ms = round(settings.ttl * 1000)
        self._budget = settings.budget_bytes
        self._put = client.register_script(lua.script("blocks/put"))
        self._touch = client.register_script(lua.script("blocks/touch"))

    async def sizes(self, keys: Sequence[str]) -> list[int]:
        """Return the size of each block in bytes; 0 for a missing block."""
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.strlen(key)
            found: list[int] = await _answered(pipe.execute())
            return found

    async def get(self, key: str) -> bytes:
        """Return the value of a block; empty if it is missing or does not decrypt, in which case it is deleted."""
        stored: bytes = await _answered(self._client.get(key)) or b""
        if not stored or self._cipher is None:
            return stored
        value = await asyncio.to_thread(self._cipher.decrypt, key, stored)
        if not value:
            await self.drop(key)
        return value

    async def put(self, domain: str, key: str, value: bytes) -> bool:
        """Store a block; return False if the domain's tenant would exceed its budget."""
        if self._cipher is not None:
            value = await asyncio.to_thread(self._cipher.encrypt, key, value)
        keys = (key, _tenant_key("used", domain), _tenant_key("full", domain))
        return bool(await _answered(self._put(keys, (value, self._ttl_ms, self._budget, _FULL_MS))))

    async def touch(self, domain: str, keys: Sequence[str], sizes: Sequence[int]) -> None:
        """Extend the lifetime of used consecutive blocks, given with their sizes in bytes."""
        last_first = (_tenant_key("used", domain), *reversed(keys))
        await _answered(self._touch(last_first, (self._ttl_ms, *reversed(sizes))))

    async def drop(self, key: str) -> None:
        """Delete a block."""
        await _answered(self._client.delete(key))

    async def is_full(self, domain: str) -> bool:
        """Whether a block of the domain's tenant recently exceeded the budget."""
        return bool(await _answered(self._client.exists(_tenant_key("full", domain))))

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


def _tenant_key(what: str, domain: str) -> str:
    tenant, _, _ = domain.partition(".")
    return f"kv:1:{what}:{tenant}"


async def _answered(answer: Any) -> Any:
    try:
        return await answer
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the store of blocks does not answer: {error}") from error
    except Exception as error:
        raise SessionStoreDown(f"the answer of the store of blocks cannot be read: {error!r}") from error
