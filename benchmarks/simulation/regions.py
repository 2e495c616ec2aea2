"""Regions in which separate drafters win over drafting in turns on the target's accelerator, by the closed form."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.simulation.world import World
from specdec.planning.sizing import Policy, RoundCosts, drafters_per_verifier

LOADS = tuple(0.25 + 0.05 * step for step in range(76))
"""Sessions on a verifier, divided by the sessions that fit into a pass."""
DRAFTS = tuple(0.05 * step for step in range(1, 41))
"""γ·t_d/t_v."""


def regions(world: World, drafter_cost: float) -> list[Sequence[float]]:
    """Return a client's speed at equal cost, separate divided by in turns: rows for DRAFTS, columns for LOADS.

    There are as many drafters as are busy all the time while verifiers are. A drafter costs `drafter_cost` verifiers.
    """
    costs, rows = world.costs(), list[Sequence[float]]()
    for share in DRAFTS:
        each = replace(costs, draft_step=share * costs.verify_pass / costs.gamma)
        drafters = drafters_per_verifier(each, Policy(verify_busy=1.0, draft_busy=1.0))
        rows.append([speed_ratio(each, load, drafters, drafter_cost) for load in LOADS])
    return rows


def speed_ratio(costs: RoundCosts, load: float, drafters: float, drafter_cost: float) -> float:
    """Return a client's speed at equal cost, separate divided by in turns, by `specdec.planning.placement`.

    Args:
        load: sessions on a verifier divided by the sessions that fit into a pass, N/B_v.
        drafters: number of drafters for one verifier.
        drafter_cost: cost of a drafter, in verifiers.
    """
    turn = costs.round_seconds - costs.round_trip
    ratio = turn * max(1.0, load) / max(costs.round_seconds, costs.verify_pass * load)
    return ratio / (1.0 + drafter_cost * drafters)
