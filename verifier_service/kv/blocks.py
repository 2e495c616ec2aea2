"""Look-up, export and restore of KV blocks between this process and gateways.

Restored blocks enter the prefix cache like those of an ended session. A generation with the same first tokens and the
same cache salt finds them.
"""

import asyncio
from abc import ABC, abstractmethod
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
from specdec.engine.kv.layout import KvLayout
from specdec.rules import blocks
from specdec.wire.kv import KvSpan

_T = TypeVar("_T")

NO_ROOM = "no_room"
"""Reason of a partial restore: there is no memory for the blocks now."""
GONE = "gone"
"""Reason of a partial restore: the tokens before the blocks no longer have KV."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    held: int
    """Number of tokens of the span, from the first of the sequence, that have KV now."""
    miss: str
    """Reason that there are no more: a Flaw, NO_ROOM or GONE; empty if all blocks were stored."""


class KvMover:
    """Exports and restores the KV blocks of a target. The base class is for targets that cannot export blocks."""

    fingerprint = ""
    """Fingerprint of the blocks; empty if it is the model's."""
    block_tokens = 0
    """Blocks begin and end at multiples of this number of tokens; 0 if any block can be exchanged."""

    async def find(self, tokens: Sequence[int], cache_salt: str) -> int:
        """Return how many of `tokens`, from the first, have KV."""
        return 0

    async def export(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        """Return the framed value of the block tokens[start:]; empty if it has no KV."""
        return b""

    async def restore(self, span: KvSpan, values: AsyncIterable[bytearray]) -> Restored:
        """Store framed values, one for each block of the span in order, up to the first flawed one."""
        return Restored(0, NO_ROOM)

    def longest_value(self, block_tokens: int) -> int:
        """Return the size of a framed block in bytes."""
        return 0


class FramedBlocks(KvMover, ABC):
    """KV blocks in frames, which are made and checked on other threads than the target's."""

    def __init__(self, layout: KvLayout, root: str) -> None:
        """Create a mover.

        Args:
            layout: layout of a token in a value.
            root: fingerprint that the chained hashes of the blocks begin with.
        """
        self._layout = layout
        self._root = root

    @override
    async def export(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        kv = await self._read(start, tokens, cache_salt)
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
        restored = await self._write(span, taken)
        return restored if restored.miss else Restored(restored.held, miss)

    @override
    def longest_value(self, block_tokens: int) -> int:
        return frame_bytes(self._layout, block_tokens)

    @abstractmethod
    async def _read(self, start: int, tokens: Sequence[int], cache_salt: str) -> Tensor | None:
        """Return the KV of tokens[start:], in the layout; None if they have none."""

    @abstractmethod
    async def _write(self, span: KvSpan, values: Sequence[Tensor]) -> Restored:
        """Store the checked KV of the first blocks of a span."""

    def _hashes(self, tokens: Sequence[int], cache_salt: str) -> list[bytes]:
        """Return the chained hash of every `specdec.rules.blocks.BLOCK_TOKENS` tokens."""
        return blocks.chain(blocks.root(self._root, cache_salt), tokens)


class KvBlocks(FramedBlocks):
    """KV blocks of the native engine. It is accessed only on its own thread; other threads frame and check values."""

    def __init__(self, engine: NativeEngine, thread: Executor) -> None:
        """Create a mover; `thread` has one worker, which owns `engine`."""
        super().__init__(engine.kv_layout, engine.facts.fingerprint)
        self._engine = engine
        self._thread = thread
        self._numbers = count()

    @override
    async def find(self, tokens: Sequence[int], cache_salt: str) -> int:
        return await self._on_thread(partial(self._engine.held, tokens, cache_salt))

    @override
    async def _read(self, start: int, tokens: Sequence[int], cache_salt: str) -> Tensor | None:
        return await self._on_thread(partial(self._engine.export_known, start, tokens, cache_salt))

    @override
    async def _write(self, span: KvSpan, values: Sequence[Tensor]) -> Restored:
        return await self._on_thread(partial(self._restore, span, values))

    def _restore(self, span: KvSpan, values: Sequence[Tensor]) -> Restored:
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

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
