"""Verifier client of the KV tier: restores the stored blocks of a call, and stores new blocks."""

import math
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from gateway.config import KvSettings
from gateway.kv.reader import KvReader
from gateway.kv.store import Block, BlockStore, SequenceBlocks
from gateway.kv.writer import KvWriter, Offer
from gateway.metrics import KvMetrics
from gateway.store.redis_client import connect
from gateway.verifiers.client import Progress, VerifierClient
from specdec.serving.rpc.access import Access
from specdec.wire.generation import GenerationCall


class KvTier:
    """Store of KV blocks with its reader and writer; at most one per process."""

    def __init__(self, settings: KvSettings, registry: CollectorRegistry) -> None:
        """Create the tier for settings that name a store; raises ConfigError if its URL is malformed."""
        metrics = KvMetrics(registry)
        self.block_tokens = settings.block_tokens
        self.store = BlockStore(connect(settings.redis_url), settings)
        self.reader = KvReader(self.store, settings, metrics)
        self.writer = KvWriter(self.store, settings, metrics)


class KvVerifierClient(VerifierClient):
    """Verifier replica that restores stored KV blocks before generations, and whose new blocks are stored."""

    def __init__(self, address: str, access: Access, tier: KvTier) -> None:
        super().__init__(address, access)
        self._tier = tier

    async def begin(self, call: GenerationCall, timeout: float) -> Progress:
        """Restore the stored blocks of a call; return a callback that offers newly filled blocks to the store."""
        info = self._info or await self.info(timeout)
        block_tokens = math.lcm(self._tier.block_tokens, info.kv_block_tokens or 1)
        sequence = SequenceBlocks(info.kv_fingerprint or info.system_fingerprint, call.cache_salt, block_tokens)
        # The verifier always computes the last token, because its logits begin the output.
        blocks = sequence.grow(call.tokens, len(call.tokens) - 1)
        if blocks:
            known = await self._tier.reader.restore(self, call, blocks, info.prefill_rate)
            blocks = blocks[known:]
        return _Offers(self, self._tier.writer, sequence, blocks, call.cache_salt).offer


class _Offers:
    """Offers the blocks of one sequence to the store after all their tokens are committed and have KV."""

    def __init__(
        self, verifier: VerifierClient, writer: KvWriter, sequence: SequenceBlocks, blocks: list[Block], salt: str
    ) -> None:
        """Args: blocks: offered at the first commit, when the verifier has computed the prompt."""
        self._verifier = verifier
        self._writer = writer
        self._sequence = sequence
        self._blocks = blocks
        self._salt = salt

    def offer(self, tokens: Sequence[int]) -> None:
        """Offer the blocks filled by a commit; `tokens` are all committed tokens."""
        blocks, self._blocks = self._blocks + self._sequence.grow(tokens, len(tokens) - 1), []
        for block in blocks:
            self._writer.offer(Offer(self._verifier, block, tuple(tokens[: block.stop]), self._salt))
