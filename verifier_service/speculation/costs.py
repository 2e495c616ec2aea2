"""Measured costs of a batch's rounds: what passes take, and how long drafts are waited for."""

import math
from collections import defaultdict
from dataclasses import dataclass

from specdec.planning.allotment import RoundSeconds
from specdec.planning.line import Line
from verifier_service.speculation.guess_costs import GuessCosts
from verifier_service.speculation.pass_sample import PassSample

_KEEP = 0.98
"""Factor by which each observation lowers the weight of those before."""
_PRIOR = 2.0
"""Weight, in observations, of a slope that is assumed before it can be measured."""
_UNKNOWN_TOKEN = 0.02
"""Cost of one more token for every session, in plain passes, before passes of different sizes have been measured."""
_LEAST_OF_PROMPTS = 0.5
"""Least cost of a token, as a share of what one of a prompt costs. A few more tokens in a pass may cost nothing that
shows, where many cost as much as prompts do, so a line through passes with few drafts says too little of long ones."""
_STEEPEST = 0.99
"""Largest share of a pass that its tokens are taken to cost."""
_NEW = 0.5
"""Weight of a pass in the mean of the passes just before the next."""
_SAME = 0.05
"""Least difference from that mean, as a share of a pass's tokens, that shows what tokens cost."""
_UNKNOWN_DRAFT = 0.1
"""Cost of a draft in plain passes, before drafters have said or shown theirs."""


class PromptRate:
    """How many tokens are computed in a second, of prompts."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a pass that computed `tokens` tokens, prompt chunks among them."""
        self._tokens = self._tokens * _KEEP + tokens
        self._seconds = self._seconds * _KEEP + seconds

    @property
    def per_second(self) -> float:
        """Prompt tokens computed in a second; 0 before the first prompt."""
        return self._tokens / self._seconds if self._seconds else 0.0


class PassTimes:
    """Seconds of a pass, base · (1 + rise · tokens), on a machine whose speed wanders.

    The rise comes from how each pass differs from the passes just before it. A line through all passes would take a
    machine that has become slower since it last drafted for one on which drafts cost nothing. Differences of single
    passes would be too noisy: one disturbed pass where drafting begins would say for long that drafts cost too much.
    """

    def __init__(self) -> None:
        self._all, self._changing = Line(), Line()
        self._least = math.inf
        """Tokens of the smallest pass."""
        self._recent = (0.0, 0.0)
        """Mean tokens and seconds of the passes just before."""
        self._xx = self._xy = 0.0
        """Of the differences from that mean."""

    @property
    def known(self) -> bool:
        """Whether anything has been observed."""
        return self._all.known

    def observe(self, tokens: float, seconds: float) -> None:
        """Learn from a pass that computed `tokens` tokens."""
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
        """Seconds of a pass without tokens, and of each, at first as of `prompts`, where something is known."""
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
    """What drafters and their links report, in seconds."""

    step: float | None
    """One draft step; None while it is unknown."""
    round_trip: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftedRounds:
    """What rounds with the drafts of one source are like."""

    alpha: float = 0.0
    """Acceptance over all sessions."""
    plain_seconds: float = 0.0
    """A round of the present batch without drafts; 0 before one was measured."""


class BatchCosts:
    """The costs of batches of about one size."""

    def __init__(self) -> None:
        self._passes = PassTimes()
        self._idle = Line()
        """Seconds from the end of a pass to the start of the next without drafts; x is not used."""
        self._waits = Line()
        """The same before a pass with drafts, by the length of the longest."""
        self._prompts = PromptRate()
        """Of the time by which prompts make passes longer."""
        self._rounds = Line()
        """Committed tokens and seconds of each round, drafted or not."""
        self._guesses = GuessCosts()

    @property
    def known(self) -> bool:
        """Whether a pass has been measured."""
        return self._passes.known

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a pass without prompt chunks that computed `tokens` tokens."""
        self._passes.observe(tokens, seconds)

    def without_prompts(self, sample: PassSample) -> float | None:
        """What a pass with prompts would have taken without them, in seconds; None if unknown. Learns from it."""
        if not self.known:
            return None
        base, token = self._passes.fit(self._prompts)
        rest = base + token * (sample.computed - sample.prompt)
        self._prompts.observe(sample.prompt, max(sample.seconds - rest, 0.0))
        rate = self._prompts.per_second
        return max(sample.seconds - sample.prompt / rate, 0.0) if rate else sample.seconds

    def observe_gap(self, longest: int, seconds: float) -> None:
        """Learn how long the batch did not compute before a pass whose longest draft was that long."""
        if longest:
            self._waits.observe(longest, seconds)
        else:
            self._idle.observe(0.0, seconds)

    def observe_round(self, sample: PassSample, gap: float, *, guessing: bool) -> None:
        """Learn how many tokens a round without prompt chunks committed, and what its guesses cost.

        Args:
            sample: its pass.
            gap: seconds before the pass that belong to the round.
            guessing: whether all drafts of the round, if there are any, are guesses of sources.
        """
        self._rounds.observe(sample.committed, gap + sample.seconds)
        if guessing:
            self._guesses.observe(sample, gap, self._passes.fit(self._prompts)[1])

    def guess_seconds(self, token: float) -> float:
        """Seconds that a guessed token adds to a round, where one adds `token` to a pass."""
        return self._guesses.seconds(token)

    @property
    def goodput(self) -> float:
        """Tokens that are committed in a second; 0 before the first round."""
        if not self._rounds.known:
            return 0.0
        committed, seconds = self._rounds.mean
        return committed / seconds

    def of(self, rows: int, drafters: DrafterTimes) -> RoundSeconds:
        """The costs of a round of `rows` sessions."""
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
    """The costs of batches, by a number for each size."""

    def __init__(self) -> None:
        super().__init__(BatchCosts)

    def nearest(self, size: int) -> BatchCosts:
        """The costs of the size nearest to `size` of which a pass without prompts is known."""
        known = [each for each, costs in self.items() if costs.known] or [size]
        return self[min(known, key=lambda each: abs(each - size))]
