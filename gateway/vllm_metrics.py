"""Speculation counters under vLLM's names, for vLLM's tools and dashboards."""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry


class SpeculationCounts(Collector):
    """Sums over the rounds committed by this gateway, without `_created` samples, which vLLM's tools misread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._drafted: dict[str, Counter[int]] = {}
        """Number of rounds by draft length, for each model."""
        self._accepted: dict[str, Counter[int]] = {}
        """Number of rounds with a draft by accepted tokens, for each model."""
        registry.register(self)

    def add_model(self, name: str) -> None:
        """Export the counts of a model from now on; `name` is its served name."""
        self._drafted[name], self._accepted[name] = Counter(), Counter()

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
        """The counters as they are now."""
        rounds = {model: drafted.total() for model, drafted in self._drafted.items()}
        yield self._family("num_drafts", "Rounds with a draft.", rounds)
        yield self._family("num_draft_tokens", "Drafted tokens.", _tokens(self._drafted))
        text = "Drafted tokens that are part of the output."
        yield self._family("num_accepted_tokens", text, _tokens(self._accepted))
        name, text = "num_accepted_tokens_per_pos", "Accepted tokens by their position in the draft, from 0."
        by_position = CounterMetricFamily(_PREFIX + name, text, labels=("model_name", "position"))
        for model, accepted in self._accepted.items():
            for position in range(max(self._drafted[model], default=0)):
                count = sum(count for length, count in accepted.items() if length > position)
                by_position.add_metric((model, str(position)), count)
        yield by_position

    def _family(self, name: str, help_text: str, values: Mapping[str, int]) -> CounterMetricFamily:
        family = CounterMetricFamily(_PREFIX + name, help_text, labels=("model_name",))
        for model, value in values.items():
            family.add_metric((model,), value)
        return family


def _tokens(rounds: Mapping[str, Counter[int]]) -> dict[str, int]:
    """The tokens of all rounds of each model."""
    return {model: sum(length * count for length, count in lengths.items()) for model, lengths in rounds.items()}


_PREFIX = "vllm:spec_decode_"
