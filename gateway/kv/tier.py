"""The KV tier: verifiers that are given the stored blocks a call needs, and whose new blocks are stored."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from prometheus_client import CollectorRegistry

from gateway.config import KvSettings
from gateway.kv.reader import KvReader
from gateway.kv.store import BlockStore, SequenceBlocks
from gateway.kv.writer import KvWriter, Offer
from gateway.metrics import KvMetrics
from gateway.store.redis_client import connect
from gateway.verifiers.client import VerifierClient
from specdec.serving.access import Access
from specdec.wire.generation import GenerationCall, Round


class KvTier:
    """The store of KV blocks, with what reads and writes it; a process has one at most."""

    def __init__(self, settings: KvSettings, registry: CollectorRegistry) -> None:
        """The tier of the settings, which name a store; raises ConfigError when its URL is malformed."""
        metrics = KvMetrics(registry)
        self.block_tokens = settings.block_tokens
        self.store = BlockStore(connect(settings.redis_url), settings)
        self.reader = KvReader(self.store, settings, metrics)
        self.writer = KvWriter(self.store, settings, metrics)


class KvVerifierClient(VerifierClient):
    """A verifier replica whose calls and rounds pass through the KV tier."""

    def __init__(self, address: str, access: Access, tier: KvTier) -> None:
        super().__init__(address, access)
        self._tier = tier

    async def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        """The rounds of one generation, whose stored blocks are restored first and whose new blocks are offered.

        A round is committed by the time the next one is asked for: its blocks are offered then, and not before.
        """
        started = time.monotonic()
        info = self._info or await self.info(timeout)
        sequence = SequenceBlocks(info.system_fingerprint, call.cache_salt, self._tier.block_tokens)
        # The verifier computes the last token in any case, because its logits begin the output.
        blocks = sequence.grow(call.tokens, len(call.tokens) - 1)
        if blocks:
            known = await self._tier.reader.restore(self, call, blocks, info.prefill_rate)
            blocks = blocks[known:]
        tokens = list(call.tokens)
        async with aclosing(super().generate(call, timeout - (time.monotonic() - started))) as rounds:
            async for verified in rounds:
                blocks += sequence.grow(tokens, len(tokens) - 1)
                for block in blocks:
                    self._tier.writer.offer(Offer(self, block, tuple(tokens[: block.stop]), call.cache_salt))
                blocks = []
                yield verified
                tokens += verified.tokens
