"""Export and restore of the KV blocks of a target on vLLM, for gateways."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from specdec.engine.kv.layout import KvLayout
from specdec.rules import blocks
from specdec.wire.kv import KvSpan
from verifier_service.kv.blocks import GONE, NO_ROOM, FramedBlocks, Restored
from verifier_service.vllm.kv.blocks import block_hashes
from verifier_service.vllm.kv.messages import Find, KvAnswer, Question, Read, SharedKv, Write
from verifier_service.vllm.kv.port import KvAsker


class VllmBlocks(FramedBlocks):
    """KV blocks of a target in another process. A value is the blocks of vLLM one after another, as each rank has them.

    Its layout depends on the version of vLLM, the number of ranks and the processor, so these are part of the
    fingerprint. Neither `native` nor another layout of vLLM reads such a value.
    """

    def __init__(self, asker: KvAsker, shared: SharedKv) -> None:
        layout = KvLayout(1, 1, shared.token_bytes, 0, torch.uint8, torch.device("cpu"))
        super().__init__(layout, shared.fingerprint)
        self.fingerprint = shared.fingerprint
        self.block_tokens = shared.block_tokens
        self._asker = asker
        self._writing = asyncio.Lock()
        """Held by the one restore whose values are on their way, so that they take little memory."""

    @override
    async def find(self, tokens: Sequence[int], cache_salt: str) -> int:
        answer = await self._ask(partial(Find, hashes=self._whole(tokens, cache_salt)))
        return answer.held * self.block_tokens

    @override
    async def _read(self, start: int, tokens: Sequence[int], cache_salt: str) -> Tensor | None:
        if start % self.block_tokens or len(tokens) % self.block_tokens:
            return None
        hashes = self._whole(tokens, cache_salt)[start // self.block_tokens :]
        answer = await self._ask(partial(Read, hashes=hashes))
        if answer.value is None:
            return None
        return torch.from_numpy(answer.value).view(1, 1, len(tokens) - start, -1)

    @override
    async def _write(self, span: KvSpan, values: Sequence[Tensor]) -> Restored:
        tokens = span.tokens[: span.start + len(values) * span.block_tokens]
        if not values or span.start % self.block_tokens or span.block_tokens % self.block_tokens:
            return Restored(await self.find(tokens, span.cache_salt), NO_ROOM if values else "")
        count = span.block_tokens // self.block_tokens
        rows = [row.numpy() for value in values for row in value.reshape(count, -1)]
        async with self._writing:
            answer = await self._ask(partial(Write, hashes=self._whole(tokens, span.cache_salt), values=rows))
        held = answer.held * self.block_tokens
        if held < len(tokens):
            return Restored(held, NO_ROOM if answer.full else GONE)
        return Restored(held, "")

    def _whole(self, tokens: Sequence[int], cache_salt: str) -> list[bytes]:
        return block_hashes(blocks.root(self.fingerprint, cache_salt), tokens, self.block_tokens)

    async def _ask(self, question: Callable[[int], Question]) -> KvAnswer:
        return await asyncio.wrap_future(await asyncio.to_thread(self._asker.ask, question))
