"""What speculation did for one generation, under the names that vLLM uses."""

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
    """What the request asked for; gamma is None when the verifier chose it."""
    num_plain_steps: int
    """Rounds without a draft."""
    num_draft_tokens: int
    acceptance_histogram: tuple[int, ...]
    """Entry j counts the rounds with a draft of which exactly j tokens were accepted, j in [0, longest draft]."""
    fallbacks: Mapping[str, int]
    """How many rounds wanted a draft and had none, by reason."""

    @property
    def num_spec_steps(self) -> int:
        """Rounds with a draft."""
        return sum(self.acceptance_histogram)

    @property
    def num_accepted_draft_tokens(self) -> int:
        """Drafted tokens that are part of the output."""
        return sum(accepted * rounds for accepted, rounds in enumerate(self.acceptance_histogram))

    @property
    def num_spec_tokens(self) -> int:
        """Length of the longest draft, in tokens."""
        return len(self.acceptance_histogram) - 1

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted tokens / drafted tokens; 0 without drafts."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens that a round with a draft commits, 1 + accepted tokens / rounds; 0 without drafts."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 0.0


def total(summaries: Sequence[Summary]) -> Summary:
    """The sums over the generations of one request, of which there is at least one."""
    histogram = [sum(places) for places in zip_longest(*(each.acceptance_histogram for each in summaries), fillvalue=0)]
    fallbacks: Counter[str] = Counter()
    for each in summaries:
        fallbacks.update(each.fallbacks)
    return Summary(
        speculation=summaries[0].speculation,
        num_plain_steps=sum(each.num_plain_steps for each in summaries),
        num_draft_tokens=sum(each.num_draft_tokens for each in summaries),
        acceptance_histogram=tuple(histogram),
        fallbacks=MappingProxyType(dict(fallbacks)),
    )


class Statistics:
    """Sums up the rounds of one generation."""

    def __init__(self, speculation: Speculation) -> None:
        self._speculation = speculation
        self._accepted: Counter[int] = Counter()
        self._longest = 0
        self._drafted = 0
        self._plain = 0
        self._fallbacks: Counter[str] = Counter()

    def add(self, drafted: int, accepted: int, fallback: str = "") -> None:
        """Add one round.

        Args:
            drafted: length of its draft; 0 when it had none.
            accepted: drafted tokens that are part of the output.
            fallback: why the round wanted a draft and had none; empty for other rounds.
        """
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
            num_plain_steps=self._plain,
            num_draft_tokens=self._drafted,
            acceptance_histogram=tuple(self._accepted[count] for count in range(self._longest + 1)),
            fallbacks=MappingProxyType(dict(self._fallbacks)),
        )
