"""Speculation statistics of a generation, under vLLM's names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from specdec.beams.options import BeamReport
from specdec.rules.speculation import Speculation
from specdec.wire.generation import GRAMMAR, Round, Speedup

_PREDICTION = "prediction"
"""Drafter name of the request's own prediction."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counters of one drafter."""

    rounds: int = 0
    drafted: int = 0
    """Drafted tokens."""
    accepted: int = 0
    """Drafted tokens that are part of the output."""
    rejections: int = 0
    """Rounds that rejected part of the draft."""
    timed: int = 0
    """Drafted tokens with a known drafting time."""
    passes: float = 0.0
    """Time that rounds waited for the timed tokens, in target passes."""

    @property
    def alpha(self) -> float:
        """Estimated probability that a drafted token is accepted."""
        return self.accepted / max(1, self.accepted + self.rejections)

    @property
    def c(self) -> float | None:
        """Mean wait per drafted token, in target passes; None if unknown."""
        return self.passes / self.timed if self.timed else None

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(  # field by field: it is made every round, and `astuple` copies each number
            self.rounds + other.rounds,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.rejections + other.rejections,
            self.timed + other.timed,
            self.passes + other.passes,
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over the rounds of a generation, or of all generations of a request."""

    speculation: Speculation
    """Options of the request; gamma is None if the verifier chose it."""
    rounds: Counter[tuple[int, int, str]]
    """Number of rounds by draft length, accepted tokens and reason for no draft.

    Rounds are counted as the verifier made them, so a round without a draft has exactly one token.
    """
    speedup: Speedup = field(default_factory=Speedup)
    """Speed-up from drafts in the verifier's batch, at the last round; unknown for rounds read from the store."""
    drafters: Mapping[str, Tally] = field(default_factory=dict)
    """Counters by drafter. Tokens forced by a grammar are counted under `grammar`."""
    beams: BeamReport | None = None
    """Report of a beam search; None without one, and for rounds read from the store."""

    @property
    def prediction(self) -> Tally:
        """Counters of drafts from the request's own prediction."""
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
        """Number of rounds without a draft although the request allows drafts, by reason."""
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
        """Number of drafted tokens."""
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
        """Accepted tokens / drafted tokens, under vLLM's name; lower than α. 0 without drafts."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens that a round with a draft commits, 1 + accepted tokens / rounds; 0 without drafts."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 0.0


def tallies_of(done: Round) -> dict[str, Tally]:
    """Return the counters of one round, by drafter."""
    tallies: dict[str, Tally] = {}
    kept = True
    for part in done.parts:
        timed = bool(done.timing.verify) and part.drafter != GRAMMAR
        tallies[part.drafter] = Tally(
            rounds=1,
            drafted=part.drafted,
            accepted=part.accepted,
            rejections=int(kept and part.accepted < part.drafted),
            timed=part.drafted if timed else 0,
            passes=done.timing.draft / done.timing.verify if timed else 0.0,
        )
        kept = kept and part.accepted == part.drafted
    return tallies


def added(sums: Mapping[str, Tally], more: Mapping[str, Tally]) -> dict[str, Tally]:
    """Return the sum of both by drafter."""
    return {name: sums.get(name, Tally()) + more.get(name, Tally()) for name in {**sums, **more}}


def total(summaries: Sequence[Summary]) -> Summary:
    """Return the sum over the generations of one request; `summaries` is not empty."""
    drafters: Mapping[str, Tally] = reduce(added, (each.drafters for each in summaries))
    return replace(summaries[0], rounds=sum((each.rounds for each in summaries), Counter()), drafters=drafters)
