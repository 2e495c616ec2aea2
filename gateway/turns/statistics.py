"""What speculation did for one generation, under the names that vLLM uses."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specdec.rules.params import Speculation
from specdec.wire.generation import Speedup

_PREDICTION = "prediction"
"""What drafts from the request's own prediction."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one drafter drafted."""

    rounds: int = 0
    drafted: int = 0
    """Tokens of its drafts."""
    accepted: int = 0
    """Of these, tokens of the output."""
    rejections: int = 0
    """Rounds that kept less than the whole draft."""

    @property
    def alpha(self) -> float:
        """Estimated chance that a draft token is accepted."""
        return self.accepted / max(1, self.accepted + self.rejections)


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over the rounds of a generation, or of all generations of a request."""

    speculation: Speculation
    """What the request asked for; gamma is None when the verifier chose it."""
    rounds: Counter[tuple[int, int, str]]
    """How many rounds had a draft of this length, so many tokens of it in the output, and this drafter, or this reason
    for no draft."""
    speedup: Speedup = field(default_factory=Speedup)
    """What drafts brought the verifier's batch at the end; unknown for rounds that are read back."""

    @property
    def drafters(self) -> dict[str, Tally]:
        """What each drafter drafted."""
        tallies: dict[str, Tally] = {}
        for (drafted, accepted, name), rounds in self.rounds.items():
            if drafted and name:
                sums = tallies.get(name, Tally())
                tallies[name] = Tally(
                    sums.rounds + rounds,
                    sums.drafted + drafted * rounds,
                    sums.accepted + accepted * rounds,
                    sums.rejections + (accepted < drafted) * rounds,
                )
        return tallies

    @property
    def prediction(self) -> Tally:
        """What was drafted from the request's own prediction."""
        return self.drafters.get(_PREDICTION, Tally())

    @property
    def acceptance_histogram(self) -> tuple[int, ...]:
        """Entry j counts the rounds with a draft of which exactly j tokens were accepted, j in [0, longest draft]."""
        counts: Counter[int] = Counter()
        for (drafted, accepted, _), rounds in self.rounds.items():
            counts[accepted] += rounds if drafted else 0
        longest = max((drafted for drafted, _, _ in self.rounds), default=0)
        return tuple(counts[accepted] for accepted in range(longest + 1))

    @property
    def fallbacks(self) -> dict[str, int]:
        """How many rounds had no draft although the request allows them, by reason."""
        counts: Counter[str] = Counter()
        for (drafted, _, fallback), rounds in self.rounds.items():
            if fallback and not drafted:
                counts[fallback] += rounds
        return dict(counts)

    @property
    def num_plain_steps(self) -> int:
        """Rounds without a draft."""
        return self.rounds.total() - self.num_spec_steps

    @property
    def num_spec_steps(self) -> int:
        """Rounds with a draft."""
        return sum(self.acceptance_histogram)

    @property
    def num_draft_tokens(self) -> int:
        """Tokens of all drafts."""
        return sum(drafted * rounds for (drafted, _, _), rounds in self.rounds.items())

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
    return replace(summaries[0], rounds=sum((each.rounds for each in summaries), Counter()))
