"""A verifier with the KV tier: it is given the stored blocks that a call needs, and its new blocks are stored."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.kv.reader import KvReader
from gateway.kv.store import SequenceBlocks
from gateway.kv.writer import KvWriter, Offer
from gateway.verifiers.verifier import BlockVerifier
from specdec.wire.generation import GenerationCall, Round, VerifierInfo


class KvVerifier:
    """A Verifier that adds the KV tier to another one."""

    def __init__(self, inner: BlockVerifier, reader: KvReader, writer: KvWriter, block_tokens: int) -> None:
        self.address = inner.address
        self._inner = inner
        self._reader = reader
        self._writer = writer
        self._block_tokens = block_tokens
        self._info: VerifierInfo | None = None

    async def info(self, timeout: float) -> VerifierInfo:
        """The facts about its model, which are also kept for `generate`."""
        self._info = await self._inner.info(timeout)
        return self._info

    async def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        """The rounds of one generation, whose stored blocks are restored first and whose new blocks are offered.

        A round is committed by the time the next one is asked for: its blocks are offered then, and not before.
        """
        started = time.monotonic()
        info = self._info or await self.info(timeout)
        sequence = SequenceBlocks(info.system_fingerprint, call.cache_salt, self._block_tokens)
        # The verifier computes the last token in any case, because its logits begin the output.
        blocks = sequence.grow(call.tokens[:-1])
        if blocks:
            known = await self._reader.restore(self._inner, call, blocks, info.prefill_rate)
            blocks = blocks[known:]
        tokens = list(call.tokens)
        async with aclosing(self._inner.generate(call, timeout - (time.monotonic() - started))) as rounds:
            async for verified in rounds:
                blocks += sequence.grow(tokens[:-1])
                for block in blocks:
                    self._writer.offer(Offer(self._inner, block, tuple(tokens[: block.stop]), call.cache_salt))
                blocks = []
                yield verified
                tokens += verified.tokens

    async def close(self) -> None:
        """Close the connection."""
        await self._inner.close()
