"""Compare drafters on their own accelerators with drafters that alternate with the target on its accelerator.

When they alternate, a pass over B_v sessions starts every t_v + γ·t_d. Apart, a pass starts every t_v, because some
sessions are drafted for while others are verified. With N sessions on one target, the tokens per second of each are

    in turns  E / ((t_v + γ·t_d)·max(1, N/B_v))        apart  E / max(t_v + γ·t_d + R, t_v·N/B_v)

For large N, apart is 1 + γ·t_d/t_v times as fast, or serves that many times the clients. For small N without drafting
ahead, it is slower by the round trip R. Apart also costs 1 + k·N_d/N_v times as much, if a drafter costs k times as
much as a verifier.
"""

from dataclasses import dataclass

from specdec.planning.sizing import Policy, RoundCosts, drafters_per_verifier


@dataclass(frozen=True, slots=True)
class Placement:
    """Ratios of drafters apart to drafting in turns on the target's accelerator."""

    full: float
    """Number of clients, or speed of each, when verifiers are full: 1 + γ·t_d/t_v."""
    alone: float
    """Speed of a client when passes have room for all: (t_v + γ·t_d) / (t_v + γ·t_d + R)."""
    drafters: float
    """Drafters per verifier, N_d / N_v."""

    @property
    def break_even(self) -> float:
        """k: cost of a drafter, in verifiers, above which drafting in turns serves more clients for the same money."""
        return (self.full - 1.0) / self.drafters

    def full_for_money(self, drafter_cost: float) -> float:
        """Ratio of clients for the same money when verifiers are full; `drafter_cost` is in verifiers."""
        return self.full / (1.0 + drafter_cost * self.drafters)


def placement(costs: RoundCosts, policy: Policy) -> Placement:
    """Compare both placements; γ of `costs` must be at least 1."""
    full, alone = 1.0 + costs.gamma * costs.c, 1.0 - costs.round_trip / costs.round_seconds
    return Placement(full, alone, drafters_per_verifier(costs, policy))
