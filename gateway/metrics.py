"""Prometheus metrics of the gateway: requests, latencies, tokens, adopted turns and failovers.

Verifiers alone count what happens inside a round (token origins, phases). The gateway exports only the draft and
acceptance counters that vLLM's tools read.
"""

import collections
from collections.abc import Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from specdec.serving.telemetry.loop_metrics import LoopCounter, LoopHistogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_VLLM = "vllm:spec_decode_"


class GatewayMetrics:
    """Every instrument of the gateway, on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.speculation = SpeculationCounts(registry)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=_SECONDS)
        self.requests = counter("specdec_requests", "Requests ended.", ("route", "code"))
        self.request_seconds = histogram(
            "specdec_request_duration_seconds", "From the request to the end of its answer.", ("route",)
        )
        of_rounds = partial(LoopHistogram, registry=registry, buckets=_SECONDS)
        self.first_token_seconds = of_rounds(
            "specdec_time_to_first_token_seconds", "From the request to its first committed round."
        )
        self.round_seconds = of_rounds(
            "specdec_round_interval_seconds", "Between two committed rounds of a generation."
        )
        self.running = gauge("specdec_gateway_requests_running", "Generations running.")
        self.waiting = gauge("specdec_gateway_requests_waiting", "Requests waiting for admission.", ("kind",))
        self.refused = counter(
            "specdec_gateway_requests_refused", "Requests refused because too much ran and waited.", ("kind",)
        )
        tokens = LoopCounter("specdec_tokens", "Tokens, prompt or output.", ("kind",), registry=registry)
        self.prompt_tokens, self.output_tokens = tokens.labels("prompt"), tokens.labels("output")
        self.tenant_tokens = LoopCounter(
            "specdec_tenant_tokens",
            "Tokens of an API key's tenant, prompt or output; the tenant is empty without keys.",
            ("tenant", "kind"),
            registry=registry,
        )
        self.verifier_up = gauge("specdec_verifier_up", "Whether a verifier is ready.", ("verifier", "model"))
        self.verifiers_ready = gauge("specdec_verifiers_ready", "Verifiers of a model that are ready.", ("model",))
        self.unserved = counter("specdec_unserved_requests", "Waits for a verifier that ended without one.", ("model",))
        self.failovers = counter("specdec_failovers", "Verifiers lost by a running generation.")
        self.store_seconds = histogram(
            "specdec_session_store_seconds", "Time of a session store operation.", ("op",), buckets=_SHORT
        )
        self.store_up = gauge("specdec_session_store_up", "Whether the session store answers.")
        self.resumes = counter("specdec_stream_resumes", "Callers that came back to a generation.")
        self.orphans = counter("specdec_orphaned_turns", "Turns whose gateway fell silent, found here.", ("outcome",))
        self.cancellations = counter("specdec_cancellations", "Generations that ended early.", ("by",))


class KeyMetrics:
    """The metrics of API keys, on the registry of GatewayMetrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.keys = gauge("specdec_api_keys", "API keys that are known.")
        self.file_good = gauge("specdec_api_keys_file_good", "Whether the file of API keys is right.")
        self.refused = counter("specdec_calls_unauthenticated", "Calls without an API key, or with an unknown one.")
        self.limited = counter(
            "specdec_requests_limited", "Requests over a limit of their API key.", ("tenant", "limit")
        )


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


class SpeculationCounts(Collector):
    """Speculation counters under vLLM's names, without `_created` samples, which vLLM's tools misread.

    The values are sums over the rounds committed by this gateway.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._drafted: dict[str, collections.Counter[int]] = {}
        """Number of rounds by draft length, for each model."""
        self._accepted: dict[str, collections.Counter[int]] = {}
        """Number of rounds with a draft by accepted tokens, for each model."""
        registry.register(self)

    def add_model(self, name: str) -> None:
        """Export the counts of a model from now on; `name` is its served name."""
        self._drafted[name], self._accepted[name] = collections.Counter(), collections.Counter()

    def count(self, model: str, drafted: int, accepted: int) -> None:
        """Count a round; one without a draft is none of vLLM's drafts.

        Args:
            model: the name of a model that was added.
            accepted: tokens of it that are part of the output.
        """
        if drafted and model in self._drafted:
            self._drafted[model][drafted] += 1
            self._accepted[model][accepted] += 1

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the current values of the counters."""
        rounds = {model: drafted.total() for model, drafted in self._drafted.items()}
        yield self._family("num_drafts", "Rounds with a draft.", rounds)
        yield self._family("num_draft_tokens", "Drafted tokens.", _tokens(self._drafted))
        text = "Drafted tokens that are part of the output."
        yield self._family("num_accepted_tokens", text, _tokens(self._accepted))
        name, text = "num_accepted_tokens_per_pos", "Accepted tokens by their position in the draft, from 0."
        by_position = CounterMetricFamily(_VLLM + name, text, labels=("model_name", "position"))
        for model, accepted in self._accepted.items():
            for position in range(max(self._drafted[model], default=0)):
                count = sum(count for length, count in accepted.items() if length > position)
                by_position.add_metric((model, str(position)), count)
        yield by_position

    def _family(self, name: str, help_text: str, values: Mapping[str, int]) -> CounterMetricFamily:
        family = CounterMetricFamily(_VLLM + name, help_text, labels=("model_name",))
        for model, value in values.items():
            family.add_metric((model,), value)
        return family


def _tokens(rounds: Mapping[str, collections.Counter[int]]) -> dict[str, int]:
    """The tokens of all rounds of each model."""
    return {model: sum(length * count for length, count in lengths.items()) for model, lengths in rounds.items()}
