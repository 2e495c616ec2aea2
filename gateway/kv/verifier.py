"""A verifier whose keys and values outlive it: what a call needs is fetched before it, what it commits is offered."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.kv.reader import KvReader
from gateway.kv.store import Chain
from gateway.kv.writer import KvWriter, Offer
from gateway.verifiers.verifier import BlockVerifier
from specdec.wire.generation import GenerationCall, Round, VerifierInfo


class KvVerifier:
    """A Verifier around another (see gateway.verifier.Verifier)."""

    def __init__(self, inner: BlockVerifier, reader: KvReader, writer: KvWriter, block_tokens: int) -> None:
        self.address = inner.address
        self._inner = inner
        self._reader = reader
        self._writer = writer
        self._block_tokens = block_tokens
        self._info: VerifierInfo | None = None

    async def info(self, timeout: float) -> VerifierInfo:
        """See gateway.verifier.Verifier."""
        self._info = await self._inner.info(timeout)
        return self._info

    async def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        """See gateway.verifier.Verifier; a round is taken as committed when the one after it is asked for."""
        started = time.monotonic()
        info = self._info or await self.info(timeout)
        chain = Chain(info.system_fingerprint, call.cache_salt, self._block_tokens)
        # The verifier computes the last token in any case: its logits begin the output.
        blocks = chain.grow(call.tokens[:-1])
        if blocks:
            known = await self._reader.restore(self._inner, call, blocks, info.prefill_rate)
            blocks = blocks[known:]
        tokens = list(call.tokens)
        async with aclosing(self._inner.generate(call, timeout - (time.monotonic() - started))) as rounds:
            async for verified in rounds:
                blocks += chain.grow(tokens[:-1])
                for block in blocks:
                    self._writer.offer(Offer(self._inner, block, tuple(tokens[: block.stop]), call.cache_salt))
                blocks = []
                yield verified
                tokens += verified.tokens

    async def close(self) -> None:
        """See gateway.verifier.Verifier."""
        await self._inner.close()
