"""What speculation did for one generation, under the names vLLM uses."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType

from specdec.rules.params import Speculation


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over the rounds of a generation."""

    speculation: Speculation
    """As asked for; γ is None when the verifier chose."""
    num_spec_steps: int
    """Rounds that had a draft."""
    num_plain_steps: int
    """Rounds that had none."""
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    acceptance_histogram: tuple[int, ...]
    """Entry j counts the rounds with a draft that accepted exactly j; one entry more than the longest draft."""
    fallbacks: Mapping[str, int]
    """Why a round that might have speculated did not: reason to number of rounds."""

    @property
    def num_spec_tokens(self) -> int:
        """Longest draft."""
        return len(self.acceptance_histogram) - 1

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0 without drafts."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a round with a draft commits: 1 + accepted / rounds; 0 without drafts."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 0.0


def total(summaries: Sequence[Summary]) -> Summary:
    """The sums over several generations of one request, at least one."""
    histogram = [sum(places) for places in zip_longest(*(each.acceptance_histogram for each in summaries), fillvalue=0)]
    fallbacks: Counter[str] = Counter()
    for each in summaries:
        fallbacks.update(each.fallbacks)
    return Summary(
        speculation=summaries[0].speculation,
        num_spec_steps=sum(each.num_spec_steps for each in summaries),
        num_plain_steps=sum(each.num_plain_steps for each in summaries),
        num_draft_tokens=sum(each.num_draft_tokens for each in summaries),
        num_accepted_draft_tokens=sum(each.num_accepted_draft_tokens for each in summaries),
        acceptance_histogram=tuple(histogram),
        fallbacks=MappingProxyType(dict(fallbacks)),
    )


class Statistics:
    """Collects the rounds of one generation."""

    def __init__(self, speculation: Speculation) -> None:
        self._speculation = speculation
        self._accepted: Counter[int] = Counter()
        self._longest = 0
        self._drafted = 0
        self._plain = 0
        self._fallbacks: Counter[str] = Counter()

    def add(self, drafted: int, accepted: int, fallback: str = "") -> None:
        """One round: `accepted` counts the drafts that are part of the output."""
        if drafted:
            self._accepted[accepted] += 1
            self._drafted += drafted
            self._longest = max(self._longest, drafted)
            return
        self._plain += 1
        if fallback:
            self._fallbacks[fallback] += 1

    def summary(self) -> Summary:
        """The sums so far."""
        return Summary(
            speculation=self._speculation,
            num_spec_steps=self._accepted.total(),
            num_plain_steps=self._plain,
            num_draft_tokens=self._drafted,
            num_accepted_draft_tokens=sum(count * rounds for count, rounds in self._accepted.items()),
            acceptance_histogram=tuple(self._accepted[count] for count in range(self._longest + 1)),
            fallbacks=MappingProxyType(dict(self._fallbacks)),
        )
