"""Measured costs of a batch's rounds: durations of passes and waits for drafts."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

from specdec.planning.allotment import RoundSeconds
from specdec.planning.line import Line
from verifier_service.backends.batch_plan import Outcome
from verifier_service.backends.model_step import ModelStep

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
_GUESS_FADE = 0.995
"""Decay with each round without guesses, so that guesses which became too expensive are tried again after a while."""
_GUESS_PRIOR = 8.0
"""Weight of the assumed cost, in guessed tokens."""


@dataclass(frozen=True, slots=True)
class PassSample:
    """Measurements of one pass."""

    rows: int
    """Number of sessions that got a verdict."""
    sessions: int
    """Number of sessions in the pass, or in both groups if there are two."""
    computed: int
    """Tokens that the pass computed."""
    committed: int
    """Tokens in the verdicts of the pass."""
    drafting: int
    """Sessions that had a draft."""
    started: float
    """Start time by `time.perf_counter`."""
    seconds: float
    follows: bool
    """Whether a session of the previous pass takes part or waits for drafts, so that the gap before the pass belongs
    to the batch's rounds. With two groups, either of the two previous passes counts."""
    prompt: int = 0
    """Prompt tokens among those computed."""
    reading: int = 0
    """Sessions whose prompts the pass completes or a later pass continues."""
    left: int = 0
    """Sessions whose prompts a later pass continues."""
    prefilling: int = 0
    """Sessions whose draft is late or missing because their drafter was still reading their tokens."""
    ahead: bool = False
    """Whether the pass ran ahead: it began before its sessions requested it."""
    groups: int = 1
    """Number of groups of the batch."""
    waited: float = 0.0
    """Longest wait in seconds among the drafts that arrived since the previous pass."""

    @classmethod
    def of(cls, step: ModelStep, sessions: int, *, follows: bool, groups: int, waited: float, left: int) -> Self:
        """Create the sample of a step's pass; `left` sessions wait for a pass over the rest of their prompts."""
        drafts = [chunk.drafts for chunk in step.chunks if chunk.judges]
        prompts = [(chunk, read) for chunk in step.chunks if (read := chunk.count - chunk.judges)]
        outcomes = [outcome for outcome in step.results.values() if isinstance(outcome, Outcome)]
        return cls(
            rows=len(drafts),
            sessions=sessions,
            computed=sum(chunk.count for chunk in step.chunks) + sum(drafts),
            prompt=sum(read for _, read in prompts),
            reading=sum(chunk.complete for chunk, _ in prompts) + left,
            left=left,
            committed=sum(len(outcome.verdict.tokens) for outcome in outcomes),
            drafting=sum(count > 0 for count in drafts),
            prefilling=sum(chunk.row.prefilling for chunk in step.chunks),
            ahead=all(chunk.row.prefetched for chunk in step.chunks),
            started=step.started,
            seconds=step.seconds,
            follows=follows,
            groups=groups,
            waited=waited,
        )


class PassHistory:
    """Creates the sample of each pass from the step and the previous passes."""

    def __init__(self) -> None:
        self._before: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """KV names of the last two passes, the latest one last."""

    def add(self, step: ModelStep, groups: int, waited: float, left: int, *, waits: bool) -> PassSample:
        """Return the sample of the next pass.

        Args:
            step: step with the pass.
            groups: as in `PassSample`.
            waited: as in `PassSample`.
            left: as in `PassSample`.
            waits: whether a session was waiting for drafts when the pass began.
        """
        names = step.names
        sessions = len(names) if groups == 1 else len(names | self._before[-1])
        follows = waits or not names.isdisjoint(frozenset[str]().union(*self._before[-groups:]))
        self._before = self._before[1], names
        return PassSample.of(step, sessions, follows=follows, groups=groups, waited=waited, left=left)


class FittedPass(NamedTuple):
    """Duration of a pass, as fitted to measured ones."""

    base: float
    """Seconds of a pass without tokens."""
    token: float
    """Seconds that each token adds."""
    measured: float
    """Number of tokens of the largest measured passes."""
    beyond: float
    """Seconds that each token adds further beyond these."""


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
        self._larger = 0.0
        """Decayed mean number of tokens in the larger one of two passes that differ; 0 before two do."""
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
            larger = max(tokens, before)
            self._larger += (larger - self._larger) * (1.0 - _KEEP if self._larger else 1.0)
        self._all.observe(tokens, seconds)
        self._least = min(self._least, tokens)
        self._recent = before + _NEW * more, took + _NEW * longer

    def fit(self, prefill_rate: float) -> FittedPass:
        """Return the fitted duration; at least one pass must be known.

        `prefill_rate`, in tokens a second, is the first assumption for the cost of a token. It is 0 if unknown.
        """
        tokens, seconds = (self._changing if self._changing.known else self._all).mean
        weight = _PRIOR * (0.5 * self._least) ** 2
        assumed = 1.0 / prefill_rate if prefill_rate else _UNKNOWN_TOKEN * seconds / tokens
        slope = (self._xy + weight * assumed) / (self._xx + weight)
        slope = min(max(slope, 0.0), _STEEPEST * seconds / tokens)
        rise = slope / (seconds - slope * tokens)
        tokens, seconds = self._all.mean
        base = seconds / (1.0 + rise * tokens)
        least = _LEAST_OF_PROMPTS * assumed if prefill_rate else 0.0
        return FittedPass(base, base * rise, self._larger, max(least - base * rise, 0.0))


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
        self._prompts = Line()
        """Prompt tokens, and seconds that they add to passes."""
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
        fitted = self._passes.fit(self._prompts.rate)
        rest = fitted.base + fitted.token * (sample.computed - sample.prompt)
        self._prompts.observe(sample.prompt, max(sample.seconds - rest, 0.0))
        rate = self._prompts.rate
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
            fitted = self._passes.fit(self._prompts.rate)
            self._guesses.observe(sample, gap, fitted.token + fitted.beyond)

    def guess_seconds(self, token: float) -> float:
        """Return the seconds that a guessed token adds to a round; `token` is the seconds it adds to a pass."""
        return self._guesses.seconds(token)

    @property
    def goodput(self) -> float:
        """Committed tokens a second; 0 before the first round."""
        return self._rounds.rate

    def of(self, rows: int, drafters: DrafterTimes) -> RoundSeconds:
        """Return the costs of a round of `rows` sessions."""
        unknown = FittedPass(1.0 - _UNKNOWN_TOKEN, _UNKNOWN_TOKEN / rows, 0.0, 0.0)
        passes = self._passes.fit(self._prompts.rate) if self.known else unknown
        step = _UNKNOWN_DRAFT * (passes.base + passes.token * rows) if drafters.step is None else drafters.step
        idle = self._idle.mean[1] if self._idle.known else 0.0
        wait, draft = drafters.round_trip, step
        if self._waits.known:
            wait, draft = self._waits.fit(step, self._waits.mean[0])
            wait -= min(idle, wait)
        measured = max(passes.measured, rows)  # plain rounds of the batch cost no token beyond
        return RoundSeconds(passes.base + idle, passes.token, wait, draft, measured=measured, beyond=passes.beyond)


class GuessCosts:
    """Time that one guessed token adds to a round of batches of about one size.

    It can exceed the time that a token adds to a pass. A pass with a guess begins only after all sessions have
    requested it, while a plain pass may run ahead (decision 35). The first tokens beyond one for each session may also
    cost more than a fit through passes of all sizes predicts.
    """

    def __init__(self) -> None:
        self._plain = Line()
        """Rows and seconds of plain rounds."""
        self._tokens = self._seconds = 0.0
        """Guessed tokens, and the extra seconds of their rounds over plain ones."""

    def observe(self, sample: PassSample, gap: float, token: float) -> None:
        """Record a round in which all drafts are guesses.

        Args:
            sample: pass of the round, without prompts.
            gap: seconds since the previous pass.
            token: seconds that one more row adds to a plain pass.
        """
        seconds, guessed = gap + sample.seconds, sample.computed - sample.rows
        if guessed and self._plain.known:
            rows, plain = self._plain.mean
            self._tokens = self._tokens * _KEEP + guessed
            self._seconds = self._seconds * _KEEP + seconds - plain - token * (sample.rows - rows)
        elif not guessed:
            self._plain.observe(sample.rows, seconds)
            self._tokens, self._seconds = self._tokens * _GUESS_FADE, self._seconds * _GUESS_FADE

    def seconds(self, token: float) -> float:
        """Return the seconds that a guessed token adds to a round, at least `token`, the seconds it adds to a pass."""
        return max((self._seconds + _GUESS_PRIOR * token) / (self._tokens + _GUESS_PRIOR), token)
