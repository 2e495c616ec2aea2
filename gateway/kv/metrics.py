"""Counts the KV blocks that are stored and restored, and the time they save."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter


class KvMetrics:
    """The metrics of the KV tier, on the registry of GatewayMetrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.hits = counter("specdec_kv_block_hits", "Blocks restored into a verifier.")
        self.misses = counter(
            "specdec_kv_block_misses", "Lookups that ended before the last whole block, by why.", ("reason",)
        )
        self.bytes = counter(
            "specdec_kv_block_bytes",
            "Bytes of blocks from verifiers into the store (in) and back (out).",
            ("direction",),
        )
        self.tokens = counter("specdec_kv_restored_tokens", "Tokens that were not computed again.")
        self.saved = counter(
            "specdec_kv_saved_seconds", "What computing restored tokens would have taken, less what restoring took."
        )
        self.dropped = counter("specdec_kv_blocks_dropped", "Blocks that were not stored, by why.", ("reason",))
