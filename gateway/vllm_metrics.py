"""What speculation did, as counters under vLLM's names, so that its tools and dashboards read them here."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry


class SpeculationCounts(Collector):
    """Sums over the rounds that this gateway has committed; without `_created` samples, which vLLM's tools misread."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        """`model` is the name under which the model is served."""
        self._model = model
        self._drafted: Counter[int] = Counter()
        """How many rounds had a draft of this many tokens."""
        self._accepted: Counter[int] = Counter()
        """How many of these had so many of them accepted."""
        registry.register(self)

    def count(self, drafted: int, accepted: int) -> None:
        """Count a round; one without a draft is none of vLLM's drafts.

        Args:
            drafted: length of its draft.
            accepted: tokens of it that are part of the output.
        """
        if drafted:
            self._drafted[drafted] += 1
            self._accepted[accepted] += 1

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counters as they are now."""
        drafted, accepted = self._drafted, self._accepted
        yield self._family("num_drafts", "Rounds with a draft.", drafted.total())
        tokens = sum(length * rounds for length, rounds in drafted.items())
        yield self._family("num_draft_tokens", "Drafted tokens.", tokens)
        tokens = sum(length * rounds for length, rounds in accepted.items())
        yield self._family("num_accepted_tokens", "Drafted tokens that are part of the output.", tokens)
        name, help_text = "num_accepted_tokens_per_pos", "Accepted tokens by their position in the draft, from 0."
        by_position = CounterMetricFamily(_PREFIX + name, help_text, labels=("model_name", "position"))
        for position in range(max(drafted, default=0)):
            rounds = sum(count for length, count in accepted.items() if length > position)
            by_position.add_metric((self._model, str(position)), rounds)
        yield by_position

    def _family(self, name: str, help_text: str, value: int) -> CounterMetricFamily:
        family = CounterMetricFamily(_PREFIX + name, help_text, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family


_PREFIX = "vllm:spec_decode_"
