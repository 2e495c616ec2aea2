"""The metrics of a verifier."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from specdec.wire.generation import Fallback, Round

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_COUNTS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)


class VerifierMetrics:
    """The metrics of one process.

    The acceptance rate is accepted / drafted; the mean length is 1 + accepted / rounds with a draft.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.rounds = Counter("specdec_spec_rounds", "Rounds that had a draft.", registry=registry)
        self.plain_rounds = Counter("specdec_spec_plain_rounds", "Rounds without a draft.", registry=registry)
        self.drafted = Counter("specdec_spec_draft_tokens", "Tokens drafted.", registry=registry)
        self.accepted = Counter("specdec_spec_accepted_tokens", "Drafts accepted and kept.", registry=registry)
        self.accepted_at = Counter(
            "specdec_spec_accepted_tokens_per_pos",
            "Drafts accepted, by place in the draft.",
            ["position"],
            registry=registry,
        )
        self.tokens = Counter("specdec_spec_tokens_by_origin", "Tokens committed.", ["origin"], registry=registry)
        self.fallbacks = Counter(
            "specdec_spec_fallback", "Rounds that wanted a draft and had none.", ["reason"], registry=registry
        )
        self.asked_rounds = Counter("specdec_spec_asked_rounds", "Rounds that waited for a draft.", registry=registry)
        self.asked_tokens = Counter("specdec_spec_asked_tokens", "Drafts these rounds asked for.", registry=registry)
        self.starved_rounds = Counter(
            "specdec_spec_starved_rounds",
            "Rounds that went on with fewer drafts than they asked for.",
            registry=registry,
        )
        self.phases = Histogram(
            "specdec_spec_phase_seconds", "Time of a round by phase.", ["phase"], registry=registry, buckets=_SECONDS
        )
        self.gamma = Histogram("specdec_spec_gamma", "Draft length of a round.", registry=registry, buckets=_COUNTS)
        self.batch_rows = Histogram("specdec_batch_rows", "Sessions in a pass.", registry=registry, buckets=_COUNTS)
        self.pass_seconds = Histogram(
            "specdec_verify_pass_seconds",
            "One target pass for the whole batch; its sum over time is how busy the model is.",
            registry=registry,
            buckets=_SECONDS,
        )
        self.admission_seconds = Histogram(
            "specdec_admission_seconds",
            "From a generation's arrival until its prompt has KV.",
            registry=registry,
            buckets=_SECONDS,
        )
        self.running = Gauge("specdec_requests_running", "Generations that hold KV.", registry=registry)
        self.waiting = Gauge("specdec_requests_waiting", "Generations that wait for KV.", registry=registry)
        self.preemptions = Counter(
            "specdec_preemptions", "Times a generation gave up its KV to one before it.", registry=registry
        )
        self.prefix_queried = Counter(
            "specdec_prefix_cache_queries", "Tokens of sequences that came in.", registry=registry
        )
        self.prefix_found = Counter("specdec_prefix_cache_hits", "Of these, tokens that had KV.", registry=registry)
        self.kv_usage = Gauge(
            "specdec_kv_cache_usage_ratio", "KV of running generations / KV there is.", registry=registry
        )
        self.kv_bytes = Gauge(
            "specdec_kv_cache_bytes",
            "KV of running generations (live), of ended ones that may serve others (cached), and all there may be.",
            ["state"],
            registry=registry,
        )
        self.drafter_up = Gauge(
            "specdec_drafter_up", "1 at the state a drafter is in.", ["address", "state"], registry=registry
        )
        self.drafter_rtt = Gauge(
            "specdec_drafter_rtt_seconds",
            "Last round trip to a drafter, without its work.",
            ["address"],
            registry=registry,
        )
        self.malformed = Counter(
            "specdec_drafter_malformed", "Drafts that made no sense.", ["address"], registry=registry
        )
        self.alpha = Gauge("specdec_spec_alpha", "Estimated acceptance, accepted / judged.", registry=registry)
        self.plain_seconds = Gauge(
            "specdec_verify_plain_seconds", "A pass without drafts over as many sessions as usual.", registry=registry
        )
        self.c = Gauge("specdec_spec_cost_c", "One draft token, in target steps.", registry=registry)
        self.beta = Gauge("specdec_spec_cost_beta", "One more verified token, in target steps.", registry=registry)
        for reason in Fallback:
            if reason:
                self.fallbacks.labels(reason.value)

    def count(self, done: Round, awaited: int) -> None:
        """Count one round as it is committed; it waited for `awaited` drafts, 0 when it took those that had come."""
        drafted = len(done.draft)
        (self.rounds if drafted else self.plain_rounds).inc()
        self.drafted.inc(drafted)
        self.accepted.inc(done.accepted)
        self.gamma.observe(drafted)
        if awaited:
            self.asked_rounds.inc()
            self.asked_tokens.inc(awaited)
            self.starved_rounds.inc(drafted < awaited)
        for position in range(done.accepted):
            self.accepted_at.labels(str(position)).inc()
        for origin in done.origins:
            self.tokens.labels(origin.value).inc()
        if done.fallback:
            self.fallbacks.labels(done.fallback).inc()
        self.phases.labels("draft").observe(done.timing.draft)
        self.phases.labels("queue").observe(done.timing.queue)
        self.phases.labels("verify").observe(done.timing.verify)
