"""The drafter's metrics. Bytes per round are `bytes_sent` divided by the rounds that the verifiers count."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class DrafterMetrics:
    """Every metric of the drafter, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.tokens = Counter("specdec_drafter_tokens", "Tokens drafted.", registry=registry)
        self.computed_tokens = Counter(
            "specdec_drafter_computed_tokens", "Tokens put through the model, prompts included.", registry=registry
        )
        self.step_seconds = Histogram(
            "specdec_drafter_step_seconds",
            "One step for the whole batch; its count is the number of steps.",
            buckets=_STEP_SECONDS,
            registry=registry,
        )
        self.batch_size = Histogram(
            "specdec_drafter_batch_size", "Sessions in one step.", buckets=_BATCH_SIZES, registry=registry
        )
        self.sessions = Gauge("specdec_drafter_sessions", "Open sessions.", registry=registry)
        self.dropped = Counter(
            "specdec_drafter_dropped_sessions",
            "Sessions dropped because another needed their memory.",
            registry=registry,
        )
        self.kv_bytes = Gauge(
            "specdec_drafter_kv_cache_bytes",
            "KV of open sessions (live), of closed ones that may serve others (cached), and all there may be.",
            ("state",),
            registry=registry,
        )
        self.streams = Gauge("specdec_drafter_streams", "Connected verifiers.", registry=registry)
        self.refused_streams = Counter(
            "specdec_drafter_refused_streams", "Verifiers refused at the handshake.", ("reason",), registry=registry
        )
        self.nacks = Counter("specdec_drafter_nacks", "Sessions refused.", ("reason",), registry=registry)
        self.frames_sent = Counter("specdec_drafter_frames_sent", "Frames sent to verifiers.", registry=registry)
        self.bytes_sent = Counter("specdec_drafter_bytes_sent", "Bytes of these frames.", registry=registry)
