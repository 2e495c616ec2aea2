"""Blocks of keys and values that leave this process and come back: found, exported, checked and restored.

Restored blocks are kept like those of a session that has ended: a generation that begins with the same tokens and has
the same cache salt finds them.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

from torch import Tensor
from typing_extensions import override

from specdec.engine import NativeEngine
from specdec.engine.kv.frame import Flaw, frame, frame_bytes, unframe
from specdec.rules import blocks
from specdec.wire.kv import KvSpan

_T = TypeVar("_T")

NO_ROOM = "no_room"
"""There is no memory for the blocks now."""
GONE = "gone"
"""The tokens before the blocks had KV and have none any more."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What came of a restore."""

    held: int
    """Tokens of the span, from the first of the sequence, that have KV now."""
    miss: str
    """Why there are no more: a Flaw, NO_ROOM or GONE; empty when all blocks were taken."""


class KvMover:
    """Moves the blocks of a target out of this process and back. This one is for a target whose blocks stay inside."""

    async def find(self, tokens: Sequence[int], cache_salt: str) -> int:
        """How many of `tokens`, from the first, have KV."""
        return 0

    async def export(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        """The framed value of the block tokens[start:]; empty when it has no KV."""
        return b""

    async def restore(self, span: KvSpan, values: AsyncIterable[bytearray]) -> Restored:
        """Take framed values, one for each block of the span in order, up to the first that is flawed."""
        return Restored(0, NO_ROOM)

    def longest_value(self, block_tokens: int) -> int:
        """Bytes of a framed block."""
        return 0


class KvBlocks(KvMover):
    """The engine is touched on its own thread only, between passes; values are framed and checked on others."""

    def __init__(self, engine: NativeEngine, thread: Executor) -> None:
        """`thread` has one worker, which owns `engine`."""
        self._engine = engine
        self._layout = engine.kv_layout
        self._thread = thread
        self._numbers = count()

    @override
    async def find(self, tokens: Sequence[int], cache_salt: str) -> int:
        return await self._on_thread(partial(self._engine.held, tokens, cache_salt))

    @override
    async def export(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        kv = await self._on_thread(partial(self._engine.export_known, start, tokens, cache_salt))
        if kv is None:
            return b""
        return await asyncio.to_thread(frame, self._layout, self._hashes(tokens, cache_salt)[-1], kv)

    @override
    async def restore(self, span: KvSpan, values: AsyncIterable[bytearray]) -> Restored:
        taken: list[Tensor] = []
        miss = ""
        hashes = self._hashes(span.tokens, span.cache_salt)
        ends = iter(span.ends)
        async for value in values:
            block = hashes[next(ends) // blocks.BLOCK_TOKENS - 1]
            found = await asyncio.to_thread(unframe, self._layout, block, span.block_tokens, value)
            if isinstance(found, Flaw):
                miss = found.value
                break
            taken.append(found)
        restored = await self._on_thread(partial(self._write, span, taken))
        return restored if restored.miss else Restored(restored.held, miss)

    @override
    def longest_value(self, block_tokens: int) -> int:
        return frame_bytes(self._layout, block_tokens)

    def _write(self, span: KvSpan, values: Sequence[Tensor]) -> Restored:
        engine, stop = self._engine, span.start + len(values) * span.block_tokens
        tokens, kv_name = span.tokens[:stop], f"kv#{next(self._numbers)}"
        if not values:
            return Restored(engine.held(tokens, span.cache_salt), "")
        if not engine.admit(kv_name, stop, tokens, span.cache_salt):
            return Restored(engine.held(tokens, span.cache_salt), NO_ROOM)
        try:
            for begin, kv in zip(range(span.start, stop, span.block_tokens), values, strict=True):
                held = engine.length(kv_name)
                if held < begin:
                    return Restored(held, GONE)
                new = tokens[held : begin + span.block_tokens]
                if new and not engine.restore(kv_name, held, new, kv[:, :, held - begin :]):
                    return Restored(held, NO_ROOM)
            return Restored(engine.length(kv_name), "")
        finally:
            engine.release(kv_name)

    def _hashes(self, tokens: Sequence[int], cache_salt: str) -> list[bytes]:
        """The chained hash of each of the engine's blocks of `tokens`."""
        return blocks.chain(blocks.root(self._engine.facts.fingerprint, cache_salt), tokens)

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
