"""Whether drafters are worth accelerators of their own, or should draft on the target's, in turns with it.

In turns, a pass over B_v sessions comes every t_v + γ·t_d; apart, one comes every t_v, for sessions get their drafts
while others are verified. With N sessions on one target, each has, in tokens a second,

    in turns  E / ((t_v + γ·t_d)·max(1, N/B_v))        apart  E / max(t_v + γ·t_d + R, t_v·N/B_v)

So apart is 1 + γ·t_d/t_v times as fast, or holds as many times the clients, where N is large, and slower by the round
trip R where N is small and nothing is drafted ahead. Apart also costs 1 + k·N_d/N_v times as much, if a drafter costs
k of what a verifier costs.
"""

from dataclasses import dataclass

from specdec.planning.sizing import Policy, RoundCosts, drafters_per_verifier


@dataclass(frozen=True, slots=True)
class Placement:
    """Drafters apart, over drafting in turns on the target's accelerator."""

    full: float
    """Clients, or the speed of each, where verifiers are full: 1 + γ·t_d/t_v."""
    alone: float
    """Speed of a client where passes have room for all: (t_v + γ·t_d) / (t_v + γ·t_d + R)."""
    drafters: float
    """Drafters that a verifier takes, N_d / N_v."""

    @property
    def break_even(self) -> float:
        """k: what a drafter may cost, in verifiers, before drafting in turns holds more clients for the same money."""
        return (self.full - 1.0) / self.drafters

    def full_for_money(self, drafter_cost: float) -> float:
        """Clients for the same money where verifiers are full, if a drafter costs so much of a verifier."""
        return self.full / (1.0 + drafter_cost * self.drafters)


def placement(costs: RoundCosts, policy: Policy) -> Placement:
    """Both ways at costs of rounds whose γ is at least 1."""
    full, alone = 1.0 + costs.gamma * costs.c, 1.0 - costs.round_trip / costs.round_seconds
    return Placement(full, alone, drafters_per_verifier(costs, policy))
