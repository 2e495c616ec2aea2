"""Prometheus metrics of a verifier."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from specdec.planning.allotment import Judgement
from specdec.planning.gamma import AcceptanceEstimate
from specdec.rules.speculation import Origin
from specdec.serving.telemetry.loop_metrics import LoopCounter, LoopHistogram
from specdec.wire.generation import GRAMMAR, DraftPart, Fallback, Round, Timing

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_COUNTS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
_KEEP = 0.995
"""Decay of earlier rounds in c with each new round."""


class VerifierMetrics:
    """Metrics of one process.

    α (`specdec_spec_alpha`) is the mean of Σ min(p, q̂) over judged drafts in mode rejection, and accepted / judged in
    the others. Drafts after the first rejection are not judged, so the ratio accepted / drafted is lower. The mean
    length of rounds with a draft is 1 + accepted / rounds.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        tally = partial(LoopCounter, registry=registry)
        spread = partial(LoopHistogram, registry=registry)
        self.rounds = tally("specdec_spec_rounds", "Rounds that had a draft.")
        self.plain_rounds = tally("specdec_spec_plain_rounds", "Rounds without a draft.")
        self.drafted = tally("specdec_spec_draft_tokens", "Tokens drafted.")
        self.accepted = tally("specdec_spec_accepted_tokens", "Drafts accepted and kept.")
        self.tokens = tally("specdec_spec_tokens_by_origin", "Tokens committed.", ["origin"])
        self.fallbacks = tally(
            "specdec_spec_fallback", "Rounds without a draft of requests that allow drafts.", ["reason"]
        )
        self.asked_rounds = tally("specdec_spec_asked_rounds", "Rounds that waited for a draft.")
        self.asked_tokens = tally("specdec_spec_asked_tokens", "Drafts these rounds asked for.")
        self.starved_rounds = tally(
            "specdec_spec_starved_rounds", "Rounds that went on with fewer drafts than they asked for."
        )
        self.phases = spread("specdec_spec_phase_seconds", "Time of a round by phase.", ["phase"], buckets=_SECONDS)
        self.gamma = spread("specdec_spec_gamma", "Draft length of a round.", buckets=_COUNTS)
        self.batch_rows = histogram("specdec_batch_rows", "Sessions in a pass.", buckets=_COUNTS)
        self.pass_seconds = histogram(
            "specdec_verify_pass_seconds",
            "One target pass for the whole batch; its sum over time is how busy the model is.",
            buckets=_SECONDS,
        )
        self.admission_seconds = histogram(
            "specdec_admission_seconds", "From a generation's arrival until its prompt has KV.", buckets=_SECONDS
        )
        self.running = gauge("specdec_requests_running", "Generations that hold KV.")
        self.waiting = gauge("specdec_requests_waiting", "Generations that wait for KV.")
        self.preemptions = counter("specdec_preemptions", "Times a generation gave up its KV to one before it.")
        self.prefix_queried = counter("specdec_prefix_cache_queries", "Tokens of sequences that came in.")
        self.prefix_found = counter("specdec_prefix_cache_hits", "Of these, tokens that had KV.")
        self.kv_usage = gauge("specdec_kv_cache_usage_ratio", "KV of running generations / KV there is.")
        self.kv_bytes = gauge(
            "specdec_kv_cache_bytes",
            "KV of running generations (live), of ended ones that may serve others (cached), and all there may be.",
            ["state"],
        )
        self.drafter_up = gauge("specdec_drafter_up", "1 at the state a drafter is in.", ["address", "state"])
        self.drafter_rtt = gauge(
            "specdec_drafter_rtt_seconds", "Last round trip to a drafter, without its work.", ["address"]
        )
        self.drafter_overlap = gauge(
            "specdec_drafter_overlap_ratio",
            "Share of the smaller vocabulary that target and drafter have in common.",
            ["address"],
        )
        self.drafter_outcomes = gauge(
            "specdec_drafter_outcomes", "Outcomes of a verdict that sessions opened last ask chains for.", ["address"]
        )
        self.push_gain = gauge(
            "specdec_drafter_push_gain",
            "Share of a round that such chains are expected to save; 0 where their number is set.",
            ["address"],
        )
        self.malformed = counter("specdec_drafter_malformed", "Drafts that made no sense.", ["address"])
        self.alpha = gauge(
            "specdec_spec_alpha",
            "Estimated acceptance: the mean of sum min(p, q) where it is known, and accepted / judged elsewhere.",
        )
        self.overlap = gauge(
            "specdec_spec_overlap", "Mean of sum min(p, q) over drafts judged by token rejection; 0 before the first."
        )
        self.plain_seconds = gauge(
            "specdec_verify_plain_seconds", "A pass without drafts over as many sessions as usual."
        )
        self.c = gauge("specdec_spec_cost_c", "One draft token, in target steps.")
        self.beta = gauge("specdec_spec_cost_beta", "One more verified token, in target steps.")
        self.of_kinds = KindMetrics(registry)
        self.of_beams = BeamMetrics(registry)
        self.predicted = gauge(
            "specdec_spec_speedup_predicted", "Tokens a second with drafts over those without, as expected."
        )
        self.measured = gauge(
            "specdec_spec_speedup_measured", "The same as measured in trials of both; 0 before the first."
        )
        self.groups = gauge(
            "specdec_batch_groups", "Groups that are drafted for and verified in turns; 1 for no turns."
        )
        self.grouping = gauge(
            "specdec_batch_groups_gain",
            "Tokens a second of two groups over those of one, as measured; 0 before that.",
        )
        # Cached, because looking up a label takes longer than counting.
        self._of_origin = {origin: self.tokens.labels(origin.value) for origin in Origin}
        self._of_reason = {reason.value: self.fallbacks.labels(reason.value) for reason in Fallback if reason}
        self._draft, self._queue, self._verify = (self.phases.labels(phase) for phase in ("draft", "queue", "verify"))

    def count(self, done: Round, awaited: int) -> None:
        """Count a committed round that waited for `awaited` drafts; 0 if it did not wait."""
        drafted = len(done.draft)
        self.gamma.observe(drafted)
        if drafted:
            self.rounds.inc()
            self.drafted.inc(drafted)
            self.accepted.inc(done.accepted)
            self.of_kinds.count(done)
        else:
            self.plain_rounds.inc()
        if awaited:
            self.asked_rounds.inc()
            self.asked_tokens.inc(awaited)
            self.starved_rounds.inc(drafted < awaited)
        for origin in done.origins:
            self._of_origin[origin].inc()
        if done.fallback:
            self._of_reason[done.fallback].inc()
        self._draft.observe(done.timing.draft)
        self._queue.observe(done.timing.queue)
        self._verify.observe(done.timing.verify)

    def judge(self, report: Judgement) -> None:
        """Publish the estimates from which draft lengths are chosen."""
        self.alpha.set(report.alpha)
        self.overlap.set(report.overlap)
        self.c.set(report.c)
        self.beta.set(report.beta)
        self.plain_seconds.set(report.plain_seconds)
        self.predicted.set(report.predicted)
        self.measured.set(report.measured or 0.0)
        self.groups.set(report.groups)
        self.grouping.set(report.grouping or 0.0)


class BeamMetrics:
    """Metrics of beam searches, which `specdec_requests_running` and `specdec_requests_waiting` leave out."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.running = gauge("specdec_beam_searches_running", "Beam searches that hold KV.")
        self.waiting = gauge("specdec_beam_searches_waiting", "Beam searches that wait for KV.")
        self.beams = gauge("specdec_beam_beams", "Beams of the searches that hold KV, by their widths.")
        self.searches = counter("specdec_beam_searches", "Beam searches that found their best beam.")
        self.tokens = counter("specdec_beam_tokens", "Tokens of all beams: one for each running beam and step.")
        self.proposed = counter("specdec_beam_proposed_tokens", "Tokens of proposed beams that drafters sent.")
        self.steps = counter("specdec_beam_steps", "Steps of beam searches.")
        self.accepted = counter("specdec_beam_accepted_steps", "Of these, steps without a target pass of their own.")


class KindMetrics:
    """Metrics of each kind of draft source: sources in this process and remote drafters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry, labelnames=["drafter"])
        gauge = partial(Gauge, registry=registry, labelnames=["drafter"])
        self.rounds = counter("specdec_spec_drafter_rounds", "Rounds that had a draft, by what drafted.")
        self.drafted = counter("specdec_spec_drafter_draft_tokens", "Tokens drafted, by what drafted.")
        self.accepted = counter("specdec_spec_drafter_accepted_tokens", "Drafts accepted and kept, by what drafted.")
        self.seconds = counter("specdec_spec_drafter_seconds", "Time that rounds waited for drafts, by what drafted.")
        self.alpha = gauge("specdec_spec_drafter_alpha", "Estimated acceptance, accepted / judged, by what drafted.")
        self.c = gauge("specdec_spec_drafter_cost_c", "One draft token, in target passes, by what drafted.")
        self._estimates: dict[str, AcceptanceEstimate] = {}
        self._waited: dict[str, tuple[float, float]] = {}

    def count(self, done: Round) -> None:
        """Count a round. Each part of its draft counts for the kind that made it."""
        whole, kept = done.accepted < len(done.tokens), True
        for part in done.parts:
            judged = part.drafted if whole else part.accepted  # drafts cut off by the end are not rejected
            self._count(part, judged if kept else 0)
            kept = kept and part.accepted == part.drafted
            if part.drafter != GRAMMAR:
                self._time(part, done.timing)

    def _count(self, part: DraftPart, judged: int) -> None:
        name = part.drafter
        self.rounds.labels(name).inc()
        self.drafted.labels(name).inc(part.drafted)
        self.accepted.labels(name).inc(part.accepted)
        estimate = self._estimates.get(name, AcceptanceEstimate(weight=0.01, decay=0.995))
        self._estimates[name] = estimate.observed(judged, part.accepted)
        self.alpha.labels(name).set(self._estimates[name].alpha)

    def _time(self, part: DraftPart, timing: Timing) -> None:
        """Count the wait for a draft."""
        name = part.drafter
        self.seconds.labels(name).inc(timing.draft)
        if timing.verify:
            tokens, passes = self._waited.get(name, (0.0, 0.0))
            tokens, passes = tokens * _KEEP + part.drafted, passes * _KEEP + timing.draft / timing.verify
            self._waited[name] = tokens, passes
            self.c.labels(name).set(passes / tokens)
