"""Checks by simulation: late, partial, cut and lost drafts, through the real parts of both services."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.draft import Verdict
from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.checks.check import Check, Kind, count, in_parts
from tests.conformance.checks.sampled import PENALTIES, Flat, Turns
from tests.conformance.sampled_chain import PROMPT, Rows
from tests.conformance.simulated_service import CALM, Chances, Generation, Simulation
from tests.conformance.table_models import Context, TableModel

P_VALUE = 1e-6
SESSIONS = 3_000
LENGTH = 4


def tables(mode: Mode, params: SamplingParams | None = None) -> Simulation:
    """Return a simulation whose models have a different distribution in every context."""
    return Simulation(mode, params or SamplingParams(), TableModel(3, seed=1), TableModel(3, seed=2))


def coins(mode: Mode, chances: Chances | None = None) -> Simulation:
    """Return a simulation whose models disagree so often that most chains are drawn again."""
    return Simulation(mode, SamplingParams(), Flat(0.5, 0.5), Flat(0.8, 0.2), chances or Chances())


def _simulated(name: str, simulation: Simulation, sessions: int = SESSIONS) -> Check:
    def sample(numbers: range) -> list[Context]:
        return simulation.generate(len(numbers), LENGTH, numbers.start)

    def value(outputs: Sequence[Context]) -> float:
        return simulation.p_value(outputs, LENGTH)

    look = in_parts(sessions, sample, value)
    return Check(name, Kind.P_VALUE, P_VALUE, lambda: value(sample(range(sessions))), look)


def small_batches(mode: Mode) -> Simulation:
    """Judge sessions alone and in batches of two, three and eight. q̂ has every id, so that any q̂ fits any draft."""
    models = TableModel(2, seed=1, scale=3.0), TableModel(2, seed=2, scale=3.0)
    return Simulation(mode, SamplingParams(), *models, replace(CALM, batch=(1, 2, 3, 8)))


def policed(mode: Mode, policy: GammaPolicy) -> Simulation:
    """End chains after the side of the coin in which the drafter has low confidence."""
    return replace(coins(mode, CALM), policy=policy)


PUSHED = Chances(gammas=(2,), drafts=1.0, sends=1.0, arrives=1.0, lost=0.0, budget=1.0, late=True)
"""Only pushed chains arrive in time, and all of them do."""


def pushed(simulation: Simulation, lost: float = 0.0) -> Simulation:
    """Push chains for four outcomes of each verdict. No other draft arrives in time."""
    return replace(simulation, outcomes=4, chances=replace(PUSHED, lost=lost))


def turns(mode: Mode, lost: float = 0.0) -> Simulation:
    """Return a simulation in which the first of two tokens almost never matches the draft and the second always does.

    Most rounds then continue with a pushed chain, so a choice that depends on the drawn token shows at once.
    """
    models = Turns((0.1, 0.9), (0.5, 0.5)), Turns((0.9, 0.1), (0.5, 0.5))
    return pushed(Simulation(mode, SamplingParams(), *models), lost)


def foreign_drafts(simulation: Simulation, sessions: int) -> float:
    """Count judged drafts that the drafter's session of the current epoch did not draw after exactly their prefix."""
    verdicts, found = Simulation._verdicts, 0

    def counting(simulation: Simulation, batch: Sequence[Generation], rows: Rows) -> list[Verdict]:
        nonlocal found
        found += sum(map(_foreign, batch))
        return verdicts(simulation, batch, rows)

    with patch.object(Simulation, "_verdicts", counting):
        simulation.generate(sessions, LENGTH)
    return found


def _foreign(each: Generation) -> int:
    committed, own = each.buffer.committed, set[int]()
    whole = (*committed, *each.draft.tokens)
    prefixes = {length: PrefixHash(whole[:length]).value for length in range(len(PROMPT), len(whole))}
    for chunk in each.sent:
        if prefixes.get(chunk.base_len) == chunk.prefix_hash:
            own |= {id(law) for law in chunk.draft.probs}
    return sum(id(law) not in own for law in each.draft.probs)


CONFIDENT = GammaPolicy(min_confidence=0.5)
ENTROPIC = GammaPolicy(PolicyKind.EGAG, 1, 3, 0.5)

CHECKS: tuple[Check, ...] = (
    _simulated("simulated rejection", tables(Mode.REJECTION)),
    _simulated("simulated block", tables(Mode.BLOCK)),
    _simulated("simulated rejection of coins", coins(Mode.REJECTION)),
    _simulated("simulated block of coins", coins(Mode.BLOCK)),
    _simulated("simulated block of coins, none late", coins(Mode.BLOCK, CALM)),
    _simulated("simulated rejection, small batches", small_batches(Mode.REJECTION), 1_200),
    _simulated("simulated block, small batches", small_batches(Mode.BLOCK), 400),
    _simulated("simulated coupling", tables(Mode.COUPLED), SESSIONS // 2),
    _simulated("simulated rejection, confident", policed(Mode.REJECTION, CONFIDENT), 1_200),
    _simulated("simulated block, confident", policed(Mode.BLOCK, CONFIDENT), 1_200),
    _simulated("simulated rejection, egag", replace(tables(Mode.REJECTION), policy=ENTROPIC), SESSIONS // 2),
    _simulated("simulated rejection, pushed", pushed(tables(Mode.REJECTION)), SESSIONS // 3),
    _simulated("simulated rejection of coins, pushed", pushed(coins(Mode.REJECTION)), SESSIONS // 3),
    _simulated("simulated block of coins, pushed", pushed(coins(Mode.BLOCK), lost=0.2), SESSIONS),
    _simulated("simulated coupling, pushed", pushed(tables(Mode.COUPLED)), SESSIONS // 3),
    _simulated("simulated rejection of turns, pushed", turns(Mode.REJECTION), 400),
    _simulated("simulated block of turns, pushed", turns(Mode.BLOCK, lost=0.2), 400),
    count(
        "pushed chains of another prefix or epoch",
        lambda: foreign_drafts(pushed(tables(Mode.REJECTION), lost=0.3), 300),
    ),
    _simulated("simulated penalties", tables(Mode.REJECTION, PENALTIES), SESSIONS // 2),
)
