"""Checks by simulation: drafts that are late, partial, cut and lost, through the real parts of both services."""

from dataclasses import replace

from specdec.rules.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.params import Mode, SamplingParams
from tests.conformance.checks.check import Check, Kind
from tests.conformance.checks.sampled import PENALTIES, Flat
from tests.conformance.simulated_service import CALM, Chances, Simulation
from tests.conformance.table_models import TableModel

P_VALUE = 1e-6
SESSIONS = 3_000
LENGTH = 4


def tables(mode: Mode, params: SamplingParams | None = None) -> Simulation:
    """Models whose every distribution differs."""
    return Simulation(mode, params or SamplingParams(), TableModel(3, seed=1), TableModel(3, seed=2))


def coins(mode: Mode, chances: Chances | None = None) -> Simulation:
    """Models that disagree so often that most chains are drawn again."""
    return Simulation(mode, SamplingParams(), Flat(0.5, 0.5), Flat(0.8, 0.2), chances or Chances())


def _simulated(name: str, simulation: Simulation, sessions: int = SESSIONS) -> Check:
    return Check(name, Kind.P_VALUE, P_VALUE, lambda: simulation.p_value(sessions, LENGTH))


def small_batches(mode: Mode) -> Simulation:
    """Sessions judged alone, in twos, threes and eights; q̂ has every id, so that any q̂ fits any draft."""
    models = TableModel(2, seed=1, scale=3.0), TableModel(2, seed=2, scale=3.0)
    return Simulation(mode, SamplingParams(), *models, replace(CALM, batch=(1, 2, 3, 8)))


def policed(mode: Mode, policy: GammaPolicy) -> Simulation:
    """Chains that end behind the side of the coin that the drafter is not sure of."""
    return replace(coins(mode, CALM), policy=policy)


PUSHED = Chances(gammas=(2,), drafts=1.0, sends=1.0, arrives=1.0, lost=0.0, budget=1.0, late=True)
"""Only pushed chains are in time, and all of them."""


def pushed(simulation: Simulation, lost: float = 0.0) -> Simulation:
    """Chains are pushed for four outcomes of each verdict; nothing else is there in time."""
    return replace(simulation, outcomes=4, chances=replace(PUSHED, lost=lost))


CONFIDENT = GammaPolicy(min_confidence=0.5)
ENTROPIC = GammaPolicy(PolicyKind.EGAG, 1, 3, 0.5)

CHECKS: tuple[Check, ...] = (
    _simulated("simulated rejection", tables(Mode.REJECTION)),
    _simulated("simulated block", tables(Mode.BLOCK)),
    _simulated("simulated rejection of coins", coins(Mode.REJECTION)),
    _simulated("simulated block of coins", coins(Mode.BLOCK)),
    _simulated("simulated block of coins, none late", coins(Mode.BLOCK, CALM)),
    _simulated("simulated rejection, small batches", small_batches(Mode.REJECTION), SESSIONS // 2),
    _simulated("simulated block, small batches", small_batches(Mode.BLOCK), SESSIONS // 2),
    _simulated("simulated coupling", tables(Mode.COUPLED), SESSIONS // 2),
    _simulated("simulated rejection, confident", policed(Mode.REJECTION, CONFIDENT)),
    _simulated("simulated block, confident", policed(Mode.BLOCK, CONFIDENT)),
    _simulated("simulated rejection, egag", replace(tables(Mode.REJECTION), policy=ENTROPIC), SESSIONS // 2),
    _simulated("simulated rejection, pushed", pushed(tables(Mode.REJECTION)), SESSIONS // 3),
    _simulated("simulated rejection of coins, pushed", pushed(coins(Mode.REJECTION)), SESSIONS // 3),
    _simulated("simulated block of coins, pushed", pushed(coins(Mode.BLOCK), lost=0.2), SESSIONS),
    _simulated("simulated coupling, pushed", pushed(tables(Mode.COUPLED)), SESSIONS // 3),
    _simulated("simulated penalties", tables(Mode.REJECTION, PENALTIES), SESSIONS // 2),
)
