"""The drafter's metrics. For bytes per round, divide `bytes_sent` by the rounds that the verifiers count."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class DrafterMetrics:
    """All metrics of the drafter, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.tokens = counter("specdec_drafter_tokens", "Tokens drafted.")
        self.computed_tokens = counter(
            "specdec_drafter_computed_tokens", "Tokens put through the model, prompts included."
        )
        self.guesses = counter(
            "specdec_drafter_guesses", "Tokens that local sources guessed and the draft model computed with its own."
        )
        self.saved_steps = counter(
            "specdec_drafter_saved_steps", "Draft steps saved because the draft model confirmed guesses."
        )
        self.missing_features = counter(
            "specdec_drafter_missing_features", "Rounds without a draft because features of the target were missing."
        )
        self.beams = counter("specdec_drafter_beams", "Beams proposed to searches of targets.")
        self.step_seconds = histogram(
            "specdec_drafter_step_seconds",
            "One step for the whole batch; its count is the number of steps.",
            buckets=_STEP_SECONDS,
        )
        self.batch_size = histogram("specdec_drafter_batch_size", "Sessions in one step.", buckets=_BATCH_SIZES)
        self.sessions = gauge("specdec_drafter_sessions", "Open sessions.")
        self.dropped = counter(
            "specdec_drafter_dropped_sessions", "Sessions dropped because another needed their room."
        )
        self.kv_bytes = gauge(
            "specdec_drafter_kv_cache_bytes",
            "KV of open sessions (live), of closed ones that may serve others (cached), and all there may be.",
            ("state",),
        )
        self.streams = gauge("specdec_drafter_streams", "Connected verifiers.")
        self.refused_streams = counter(
            "specdec_drafter_refused_streams", "Verifiers refused at the handshake.", ("reason",)
        )
        self.nacks = counter("specdec_drafter_nacks", "Sessions refused.", ("reason",))
        self.frames_sent = counter("specdec_drafter_frames_sent", "Frames sent to verifiers.")
        self.bytes_sent = counter("specdec_drafter_bytes_sent", "Bytes of these frames.")
