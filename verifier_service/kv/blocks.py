"""Keys and values that leave this process and come back: found, exported, checked and restored, by what they belong to.

What comes back is kept as that of a session which has ended: a generation that begins alike finds it there.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

from torch import Tensor

from specdec.engine import NativeEngine
from specdec.engine.kv_frame import Flaw, frame, frame_bytes, unframe
from specdec.rules import blocks

_T = TypeVar("_T")

NO_ROOM = "no_room"
"""There is no memory for the blocks now."""
GONE = "gone"
"""What they follow was here and is no more."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive blocks of one length; everything in whole blocks of the engine's."""

    tokens: tuple[int, ...]
    """The sequence up to the end of the last one."""
    domain: str
    start: int
    """Where the first one begins."""
    block_tokens: int

    @property
    def ends(self) -> range:
        """Where each block ends."""
        return range(self.start + self.block_tokens, len(self.tokens) + 1, self.block_tokens)


@dataclass(frozen=True, slots=True)
class Restored:
    """What came of it."""

    held: int
    """Tokens that have keys and values now."""
    miss: str
    """Why no more: a Flaw, NO_ROOM or GONE; empty when all were taken."""


class KvBlocks:
    """The engine is touched on its own thread only, between passes; values are framed and checked on others."""

    def __init__(self, engine: NativeEngine, thread: Executor) -> None:
        self._engine = engine
        self._layout = engine.kv_layout
        self._thread = thread
        self._numbers = count()

    async def find(self, tokens: Sequence[int], domain: str) -> int:
        """How many of `tokens`, from the first, are here."""
        return await self._on_thread(partial(self._engine.held, tokens, domain))

    async def export(self, start: int, tokens: Sequence[int], domain: str) -> bytes:
        """The framed value of the block tokens[start:]; empty when it is not here."""
        kv = await self._on_thread(partial(self._engine.export_known, start, tokens, domain))
        if kv is None:
            return b""
        return await asyncio.to_thread(frame, self._layout, self._hash(tokens, domain), kv)

    async def restore(self, span: Span, values: AsyncIterable[bytearray]) -> Restored:
        """Take framed values, one for each block of the span in order, up to the first that is no good."""
        kept: list[Tensor] = []
        miss = ""
        hashes = blocks.chain(blocks.root(self._engine.fingerprint, span.domain), span.tokens)
        ends = iter(span.ends)
        async for value in values:
            block = hashes[next(ends) // blocks.BLOCK_TOKENS - 1]
            found = await asyncio.to_thread(unframe, self._layout, block, span.block_tokens, value)
            if isinstance(found, Flaw):
                miss = found.value
                break
            kept.append(found)
        restored = await self._on_thread(partial(self._write, span, kept))
        return restored if restored.miss else Restored(restored.held, miss)

    def longest_value(self, block_tokens: int) -> int:
        """Bytes of a framed block."""
        return frame_bytes(self._layout, block_tokens)

    def _write(self, span: Span, kept: Sequence[Tensor]) -> Restored:
        engine, stop = self._engine, span.start + len(kept) * span.block_tokens
        tokens, session = span.tokens[:stop], f"kv#{next(self._numbers)}"
        if not kept:
            return Restored(engine.held(tokens, span.domain), "")
        if not engine.admit(session, stop, tokens, span.domain):
            return Restored(engine.held(tokens, span.domain), NO_ROOM)
        try:
            for begin, kv in zip(range(span.start, stop, span.block_tokens), kept, strict=True):
                there = engine.length(session)
                if there < begin:
                    return Restored(there, GONE)
                new = tokens[there : begin + span.block_tokens]
                if new and not engine.restore(session, there, new, kv[:, :, there - begin :]):
                    return Restored(there, NO_ROOM)
            return Restored(engine.length(session), "")
        finally:
            engine.release(session)

    def _hash(self, tokens: Sequence[int], domain: str) -> bytes:
        return blocks.chain(blocks.root(self._engine.fingerprint, domain), tokens)[-1]

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
