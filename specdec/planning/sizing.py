"""Number of verifiers and drafters for a throughput, and whether drafting pays, in closed form.

With E tokens per round (`specdec.planning.gamma`), X tokens/s need L = X / E rounds/s. A verifier judges B_v sessions
in t_v with utilisation ρ_v; a drafter drafts γ tokens for B_d sessions in γ·t_d with utilisation ρ_d:

    N_v = ⌈L·t_v / (B_v·ρ_v)⌉    N_d = ⌈L·γ·t_d / (B_d·ρ_d)⌉    N_d / N_v = γ·c·(B_v/B_d)·(ρ_v/ρ_d),  c = t_d/t_v

α is not in the ratio N_d / N_v: it changes the size of both tiers by the same factor.
"""

import math
from dataclasses import dataclass

from specdec.planning.gamma import best_gamma, expected_tokens, least_speedup, operations_factor


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """The costs of rounds, measured or estimated; times are in seconds.

    Raises:
        ValueError: a number is out of range.
    """

    alpha: float
    """α: the probability that a draft token is accepted."""
    gamma: int
    """γ: the number of tokens in a draft."""
    draft_step: float
    """t_d: one drafter step over a batch of `draft_batch` sessions."""
    verify_pass: float
    """t_v: one target pass that judges `gamma` drafts of each of `verify_batch` sessions."""
    plain_pass: float
    """t_p: one target pass over `verify_batch` sessions without drafts."""
    draft_batch: float
    """B_d: sessions in one drafter step."""
    verify_batch: float
    """B_v: sessions in one target pass."""
    round_trip: float = 0.0
    """R: network and encoding time from verifier to drafter and back."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha must be in 0..1, got {self.alpha}")
        if self.gamma < 0 or self.round_trip < 0:
            raise ValueError("gamma and the round trip must not be negative")
        for name in ("draft_step", "verify_pass", "plain_pass", "draft_batch", "verify_batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name.replace('_', ' ')} must be positive, got {getattr(self, name)}")

    @property
    def c(self) -> float:
        """c: the time of a draft step in verify passes."""
        return self.draft_step / self.verify_pass

    @property
    def tokens_per_round(self) -> float:
        """E: the expected number of tokens that a round commits."""
        return expected_tokens(self.alpha, self.gamma)

    @property
    def speedup(self) -> float:
        """Speed of one session relative to plain decoding: E·t_p / (t_v + γ·t_d + R); 1 without drafts."""
        if self.gamma == 0:
            return 1.0
        return self.tokens_per_round * self.plain_pass / self.round_seconds

    @property
    def round_seconds(self) -> float:
        """Time of one round of a session that never waits in a queue: t_v + γ·t_d + R."""
        return self.verify_pass + self.gamma * self.draft_step + self.round_trip

    @property
    def least_speedup(self) -> float | None:
        """Speed-up of some γ without a network, with equal passes (Corollary 3.9); None if α ≤ t_d / t_p."""
        return least_speedup(self.alpha, self.draft_step / self.plain_pass)

    def operations(self, c_ops: float) -> float:
        """Arithmetic operations per token of drafter and target relative to plain decoding (Theorem 3.11)."""
        return operations_factor(self.alpha, self.gamma, c_ops)

    @property
    def best_gamma(self) -> int:
        """The γ with the greatest speed-up, if each verified token costs as much as at the current γ."""
        beta = (self.verify_pass / self.plain_pass - 1.0) / self.gamma if self.gamma else 0.0
        step = self.plain_pass
        return best_gamma(self.alpha, self.draft_step / step, self.round_trip / step, max(beta, 0.0))


@dataclass(frozen=True, slots=True)
class Policy:
    """Target utilisation of the tiers, and the least speed-up by drafting."""

    verify_busy: float = 0.8
    """ρ_v: share of time that a verifier is busy."""
    draft_busy: float = 0.8
    """ρ_d: share of time that a drafter is busy."""
    min_speedup: float = 1.0
    """The speed-up that drafting must exceed, else γ = 0."""

    def __post_init__(self) -> None:
        if not (0.0 < self.verify_busy <= 1.0 and 0.0 < self.draft_busy <= 1.0):
            raise ValueError("how busy a tier may be must be in 0..1, without 0")


@dataclass(frozen=True, slots=True)
class Sizing:
    """Replicas of each tier for a throughput."""

    pays: bool
    """Whether drafting pays; if not, the other numbers except `speedup` are for plain decoding."""
    speedup: float
    """Speed-up of one session by drafting."""
    gamma: int
    """Tokens of a draft; 0 for plain decoding."""
    tokens_per_round: float
    """Expected number of tokens that a round commits."""
    rounds_per_second: float
    """Rounds of all sessions together."""
    verifiers: int
    """Number of verifiers, N_v."""
    drafters: int
    """Number of drafters, N_d."""
    ratio: float
    """N_d / N_v before rounding."""
    sessions_per_verifier: int
    """Sessions that keep the batches of one verifier full: B_v·(t_v + γ·t_d + R) / t_v. Its KV memory must fit them."""
    plain_verifiers: int
    """Number of verifiers that plain decoding needs for the same throughput."""


def drafters_per_verifier(costs: RoundCosts, policy: Policy) -> float:
    """N_d / N_v = γ·c·(B_v/B_d)·(ρ_v/ρ_d)."""
    batches = costs.verify_batch / costs.draft_batch
    return costs.gamma * costs.c * batches * policy.verify_busy / policy.draft_busy


def pays(costs: RoundCosts, policy: Policy) -> bool:
    """Whether the speed-up by drafting exceeds the policy's minimum."""
    return costs.gamma > 0 and costs.speedup > policy.min_speedup


def size(tokens_per_second: float, costs: RoundCosts, policy: Policy) -> Sizing:
    """The replicas of each tier that a throughput needs.

    Raises:
        ValueError: the throughput is not positive.
    """
    if not tokens_per_second > 0:
        raise ValueError(f"tokens per second must be positive, got {tokens_per_second}")
    drafting = pays(costs, policy)
    per_round = costs.tokens_per_round if drafting else 1.0
    rounds = tokens_per_second / per_round
    plain = _replicas(tokens_per_second * costs.plain_pass, costs.verify_batch * policy.verify_busy)
    verifiers = _replicas(rounds * costs.verify_pass, costs.verify_batch * policy.verify_busy) if drafting else plain
    work = rounds * costs.gamma * costs.draft_step
    fill = costs.round_seconds / costs.verify_pass if drafting else 1.0
    return Sizing(
        pays=drafting,
        speedup=costs.speedup,
        gamma=costs.gamma if drafting else 0,
        tokens_per_round=per_round,
        rounds_per_second=rounds,
        verifiers=verifiers,
        drafters=_replicas(work, costs.draft_batch * policy.draft_busy) if drafting else 0,
        ratio=drafters_per_verifier(costs, policy) if drafting else 0.0,
        sessions_per_verifier=math.ceil(costs.verify_batch * fill - _ROUNDING),
        plain_verifiers=plain,
    )


_ROUNDING = 1e-9
"""A count that exceeds a whole number by at most this is rounded down, as floating-point error."""


def _replicas(work: float, capacity: float) -> int:
    return max(math.ceil(work / capacity - _ROUNDING), 1)
