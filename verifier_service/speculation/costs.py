"""Measured costs of a batch's rounds: durations of passes and waits for drafts."""

import math
from collections import defaultdict
from dataclasses import dataclass

from specdec.planning.allotment import RoundSeconds
from specdec.planning.line import Line
from verifier_service.speculation.guess_costs import GuessCosts
from verifier_service.speculation.pass_sample import PassSample

_KEEP = 0.98
"""Decay of earlier observations with each new one."""
_PRIOR = 2.0
"""Weight of the assumed slope, in observations."""
_UNKNOWN_TOKEN = 0.02
"""Assumed cost of one more token for every session, in plain passes, until passes of different sizes are measured."""
_LEAST_OF_PROMPTS = 0.5
"""Least cost of a token, as a share of the cost of a prompt token. A few extra tokens may cost nothing measurable
while many cost as much as prompt tokens, so a fit through passes with few drafts underestimates long drafts."""
_STEEPEST = 0.99
"""Largest share of a pass's duration attributed to its tokens."""
_NEW = 0.5
"""Weight of the latest pass in the mean of recent passes."""
_SAME = 0.05
"""Least difference from that mean, as a share of a pass's tokens, that counts for the cost of tokens."""
_UNKNOWN_DRAFT = 0.1
"""Assumed cost of a draft token, in plain passes, until drafters report it or it is measured."""


class PromptRate:
    """Measured prefill rate in tokens a second."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Record `tokens` tokens computed in `seconds` by a pass with prompt chunks."""
        self._tokens = self._tokens * _KEEP + tokens
        self._seconds = self._seconds * _KEEP + seconds

    @property
    def per_second(self) -> float:
        """Prefill rate in tokens a second; 0 before the first prompt."""
        return self._tokens / self._seconds if self._seconds else 0.0


class PassTimes:
    """Duration of a pass, modelled as base · (1 + rise · tokens), on a machine whose speed drifts.

    The rise is estimated from the difference between each pass and the mean of the passes just before it. A fit
    through all passes would confuse drift with cost: on a machine that slowed down after it drafted, drafts would seem
    free. Differences between single passes are too noisy, since one disturbed pass would distort the estimate for long.
    """

    def __init__(self) -> None:
        self._all, self._changing = Line(), Line()
        self._least = math.inf
        """Number of tokens in the smallest pass."""
        self._recent = (0.0, 0.0)
        """Mean tokens and seconds of recent passes."""
        self._xx = self._xy = 0.0
        """Decayed sums of squares and products of the differences from that mean."""

    @property
    def known(self) -> bool:
        """Whether a pass has been observed."""
        return self._all.known

    def observe(self, tokens: float, seconds: float) -> None:
        """Record a pass that computed `tokens` tokens."""
        before, took = self._recent if self.known else (tokens, seconds)
        more, longer = tokens - before, seconds - took
        if abs(more) > _SAME * tokens:
            self._xx = self._xx * _KEEP + more * more
            self._xy = self._xy * _KEEP + more * longer
            self._changing.observe((tokens + before) / 2, (seconds + took) / 2)
        self._all.observe(tokens, seconds)
        self._least = min(self._least, tokens)
        self._recent = before + _NEW * more, took + _NEW * longer

    def fit(self, prompts: PromptRate) -> tuple[float, float]:
        """Return the seconds of a pass without tokens and of each token; at least one pass must be known.

        The prefill rate `prompts`, if known, is the first assumption for the cost of a token.
        """
        tokens, seconds = (self._changing if self._changing.known else self._all).mean
        weight = _PRIOR * (0.5 * self._least) ** 2
        assumed = 1.0 / prompts.per_second if prompts.per_second else _UNKNOWN_TOKEN * seconds / tokens
        slope = (self._xy + weight * assumed) / (self._xx + weight)
        least = _LEAST_OF_PROMPTS * assumed if prompts.per_second else 0.0
        slope = min(max(slope, least), _STEEPEST * seconds / tokens)
        rise = slope / (seconds - slope * tokens)
        tokens, seconds = self._all.mean
        base = seconds / (1.0 + rise * tokens)
        return base, base * rise


@dataclass(frozen=True, slots=True)
class DrafterTimes:
    """Times that drafters and their links report, in seconds."""

    step: float | None
    """Duration of one draft step; None if unknown."""
    round_trip: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftedRounds:
    """Acceptance and plain round time for the drafts of one source."""

    alpha: float = 0.0
    """Acceptance rate over all sessions."""
    plain_seconds: float = 0.0
    """Duration of a round of the current batch without drafts, in seconds; 0 before the first measurement."""


class BatchCosts:
    """Costs of batches of about one size."""

    def __init__(self) -> None:
        self._passes = PassTimes()
        self._idle = Line()
        """Seconds from the end of a pass to the start of the next one without drafts; x is not used."""
        self._waits = Line()
        """Seconds from the end of a pass to the start of the next one with drafts, by length of the longest draft."""
        self._prompts = PromptRate()
        """Prefill rate, from the time that prompts add to passes."""
        self._rounds = Line()
        """Committed tokens and seconds of each round, with or without drafts."""
        self._guesses = GuessCosts()

    @property
    def known(self) -> bool:
        """Whether a pass has been measured."""
        return self._passes.known

    def observe(self, tokens: int, seconds: float) -> None:
        """Record a pass without prompt chunks that computed `tokens` tokens."""
        self._passes.observe(tokens, seconds)

    def without_prompts(self, sample: PassSample) -> float | None:
        """Record a pass with prompts; return its estimated seconds without them, or None if unknown."""
        if not self.known:
            return None
        base, token = self._passes.fit(self._prompts)
        rest = base + token * (sample.computed - sample.prompt)
        self._prompts.observe(sample.prompt, max(sample.seconds - rest, 0.0))
        rate = self._prompts.per_second
        return max(sample.seconds - sample.prompt / rate, 0.0) if rate else sample.seconds

    def observe_gap(self, longest: int, seconds: float) -> None:
        """Record the idle seconds before a pass whose longest draft has `longest` tokens."""
        if longest:
            self._waits.observe(longest, seconds)
        else:
            self._idle.observe(0.0, seconds)

    def observe_round(self, sample: PassSample, gap: float, *, guessing: bool) -> None:
        """Record the committed tokens of a round without prompt chunks, and the cost of its guesses.

        Args:
            sample: pass of the round.
            gap: seconds before the pass that belong to the round.
            guessing: whether all drafts of the round, if any, are guesses of sources in this process.
        """
        self._rounds.observe(sample.committed, gap + sample.seconds)
        if guessing:
            self._guesses.observe(sample, gap, self._passes.fit(self._prompts)[1])

    def guess_seconds(self, token: float) -> float:
        """Return the seconds that a guessed token adds to a round; `token` is the seconds it adds to a pass."""
        return self._guesses.seconds(token)

    @property
    def goodput(self) -> float:
        """Committed tokens a second; 0 before the first round."""
        if not self._rounds.known:
            return 0.0
        committed, seconds = self._rounds.mean
        return committed / seconds

    def of(self, rows: int, drafters: DrafterTimes) -> RoundSeconds:
        """Return the costs of a round of `rows` sessions."""
        unknown = 1.0 - _UNKNOWN_TOKEN, _UNKNOWN_TOKEN / rows
        base, token = self._passes.fit(self._prompts) if self.known else unknown
        step = _UNKNOWN_DRAFT * (base + token * rows) if drafters.step is None else drafters.step
        idle = self._idle.mean[1] if self._idle.known else 0.0
        wait, draft = drafters.round_trip, step
        if self._waits.known:
            wait, draft = self._waits.fit(step, self._waits.mean[0])
            wait -= min(idle, wait)
        return RoundSeconds(base + idle, token, wait, draft)


class SizedCosts(defaultdict[int, BatchCosts]):
    """Costs of batches by size level."""

    def __init__(self) -> None:
        super().__init__(BatchCosts)

    def nearest(self, size: int) -> BatchCosts:
        """Return the costs of the level nearest to `size` at which a pass without prompts is known."""
        known = [each for each, costs in self.items() if costs.known] or [size]
        return self[min(known, key=lambda each: abs(each - size))]
