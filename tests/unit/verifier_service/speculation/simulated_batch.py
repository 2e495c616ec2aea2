"""A batch in simulated time: sessions with randomly accepted drafts, passes and waits of known cost."""

import math
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

from specdec.planning.allotment import RoundSeconds
from tests.support.clock import Clock
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.costs import DrafterTimes, PassSample
from verifier_service.speculation.session_gamma import SessionGamma

GAMMA_MAX = 16
RUNS_AHEAD_BEHIND = 3
"""Number of consecutive plain rounds after which passes run ahead."""
SILENT = DrafterTimes(None)
WARM, LONG = 300, 1200
"""Rounds until a batch is known, and rounds that show its speed."""


@dataclass
class SimulatedBatch:
    """Sessions without end, all in every pass."""

    alphas: list[float]
    costs: RoundSeconds
    """True costs of rounds."""
    told: DrafterTimes = SILENT
    """Times reported by drafters."""
    silent: float = 0.0
    """Share of a session's rounds for which its drafter sends nothing."""
    loop: float = 0.0
    """Seconds between two passes without waits, unless the second runs ahead."""
    reading: int = 0
    """First rounds without drafts or waits, because the drafter still reads the sessions."""
    noise: float = 0.0
    """Standard deviation of a pass's duration, relative to it."""
    prompts: int = 0
    """Prompt tokens computed before every pass, in a pass that waits for no drafts."""
    timeout: float = math.inf
    """Longest wait, in seconds. A draft that is incomplete after it is missing entirely."""
    source: str | None = "model"
    clock: Clock = field(default_factory=Clock)
    spent: float = 0.0
    """Processor time of the judging thread, in seconds."""
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    tokens: int = 0
    drafted_tokens: int = 0
    """Tokens of rounds in which a session drafted."""
    plain_rounds: int = 0
    """Consecutive plain rounds up to now."""
    gammas: list[int] = field(default_factory=list)
    """Draft lengths of the last pass."""

    def __post_init__(self) -> None:
        clocks = self.clock, lambda: self.spent
        self.speculation = BatchSpeculation(GAMMA_MAX, 512, lambda: self.told, *clocks, timeout=self.timeout)
        self.sessions: list[SessionGamma] = [self.speculation.session(lambda: self.source) for _ in self.alphas]

    def run(self, rounds: int, fixed: int | None = None) -> float:
        """Return tokens per second over these rounds, with γ set to `fixed` if given."""
        tokens, started = self.tokens, self.clock.now
        for _ in range(rounds):
            self._round(fixed)
        return (self.tokens - tokens) / (self.clock.now - started)

    def burst(self, rows: int, prompt: int, left: int = 0) -> None:
        """Compute a piece of a burst of prompts, in one pass with the first `rows` sessions, which do not draft.

        `left` prompts wait for the next pass.
        """
        for session in self.sessions[:rows]:
            session.gamma()
        self._over_prompts(rows, prompt, reading=len(self.sessions) - rows, left=left)

    def _round(self, fixed: int | None) -> None:
        wanted = [session.gamma() if fixed is None else fixed for session in self.sessions]
        self.gammas = [0 if self.dice.random() < self.silent else gamma for gamma in wanted]
        reading = max(wanted) > 0 and self.reading > 0
        if reading:
            self.reading, self.gammas = self.reading - 1, [0] * len(wanted)
        patience = math.inf if fixed else max(self.speculation.patience(), 0.0)
        gap = self._wait(0 if reading else max(wanted), min(patience, self.timeout))
        self.plain_rounds = 0 if max(wanted) else self.plain_rounds + 1
        ahead = self.plain_rounds > RUNS_AHEAD_BEHIND
        gap += 0.0 if max(wanted) or ahead else self.loop
        accepted = [self._accepted(alpha, gamma) for alpha, gamma in zip(self.alphas, self.gammas, strict=True)]
        if self.prompts:
            self._prompt_pass(drafting=max(wanted) > 0)
        started = self.clock.now + gap
        computed = len(self.alphas) + sum(self.gammas)
        seconds = (self.costs.base + self.costs.token * computed) * max(1.0 + self.dice.gauss(0.0, self.noise), 0.2)
        self.clock.now = started + seconds
        committed = sum(accepted) + len(accepted)
        self.tokens += committed
        self.drafted_tokens += committed if max(wanted) else 0
        drafting = sum(gamma > 0 for gamma in self.gammas)
        sample = SimpleNamespace(rows=len(accepted), computed=computed, committed=committed, drafting=drafting)
        sample.sessions, sample.prefilling = sample.rows, len(accepted) if reading else 0
        sample.ahead = ahead
        self.speculation.passed(PassSample(**vars(sample), started=started, seconds=seconds, follows=True))
        for session, gamma, count in zip(self.sessions, self.gammas, accepted, strict=True):
            session.observe(gamma, count)

    def _prompt_pass(self, *, drafting: bool) -> None:
        """Compute a prompt, while drafting sessions wait for their drafts."""
        self._over_prompts(0 if drafting else len(self.alphas), self.prompts, reading=1)

    def _over_prompts(self, rows: int, prompt: int, reading: int, left: int = 0) -> None:
        """Run a pass over these sessions and over the prompts of others."""
        started, computed = self.clock.now, rows + prompt
        seconds = self.costs.base + self.costs.token * computed
        self.clock.now += seconds
        self.tokens += rows
        sample = PassSample(rows, rows, computed, rows, 0, started, seconds, True, prompt, reading, left)
        self.speculation.passed(sample)

    def _wait(self, longest: int, patience: float) -> float:
        if not longest:
            return 0.0
        needed = self.costs.wait + self.costs.draft * longest
        if needed > patience:
            self.gammas = [0] * len(self.gammas)
        return min(needed, patience)

    def _accepted(self, alpha: float, gamma: int) -> int:
        return next((step for step in range(gamma) if self.dice.random() >= alpha), gamma)


def plain_rate(batch: SimulatedBatch) -> float:
    """Return tokens per second without drafts."""
    sessions = len(batch.alphas)
    return sessions / (batch.costs.base + batch.costs.token * sessions)


def costs(sessions: int, c: float, beta: float, wait: float) -> RoundSeconds:
    """Return the costs of a machine whose plain pass over that many sessions takes 10 ms."""
    return RoundSeconds(0.010 * (1 - beta), 0.010 * beta / sessions, 0.010 * wait, 0.010 * c)
