"""What the ratio controller exports."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.ratio_controller.policy import Recommendation


class ControllerMetrics:
    """Every instrument of the controller, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.leader = Gauge("specdec_ratio_leader", "1 in the replica that acts.", registry=registry)
        self.term = Gauge("specdec_ratio_term", "Number of the term it leads in.", registry=registry)
        self.ratio = Gauge("specdec_ratio_drafters_per_verifier", "N_d / N_v by the formula.", registry=registry)
        self.speedup = Gauge("specdec_ratio_speedup", "What drafts bring a session, by the formula.", registry=registry)
        self.current = Gauge("specdec_ratio_current_drafters", "Drafters that there should be now.", registry=registry)
        self.wanted = Gauge("specdec_ratio_wanted_drafters", "Drafters wanted, before it lasts.", registry=registry)
        self.wishes = Counter("specdec_ratio_wishes", "Looks, by what decided.", ["reason"], registry=registry)
        self.changes = Counter("specdec_ratio_changes", "Changes of the scale.", ["direction"], registry=registry)
        self.failures = Counter("specdec_ratio_failures", "Looks that came to nothing.", ["what"], registry=registry)
        self.last_success = Gauge(
            "specdec_ratio_last_look_timestamp_seconds", "When a look last came to something.", registry=registry
        )

    def record(self, recommendation: Recommendation, current: int) -> None:
        """Export one recommendation beside the present number of drafters."""
        self.wishes.labels(recommendation.reason).inc()
        self.wanted.set(recommendation.drafters)
        self.current.set(current)
        if recommendation.ratio is not None:
            self.ratio.set(recommendation.ratio)
        if recommendation.speedup is not None:
            self.speedup.set(recommendation.speedup)
        self.last_success.set_to_current_time()
