"""The served law with late drafts and lost drafters, in batches of 1, 2, 3 and 8 sessions.

The links to two drafters stall and break at random times that do not depend on the drafts. The verifier's timeout is so
short that some rounds have all their drafts, some have a part of them and some have none. Which rounds these are
depends on the clock, but the law must not. Outputs are whole sequences of four tokens, as in `test_served_law.py`, with
the same bound: one of the 8 cells of sound code fails in 8e-6 of the runs.
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product

import pytest

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.g_test import p_value
from tests.conformance.notes import Note
from tests.conformance.served_pair import Ask, Done, generate, running_drafter, running_verifier
from tests.conformance.small_pair import END, PROMPT, small
from tests.conformance.unsteady_link import Weather, unsteady

pytestmark = pytest.mark.integration

SESSIONS = 250
LENGTH = 4
GAMMAS = (3, 1, 2)
P_VALUE = 1e-6
DRAFTERS = 2
TITLE = f"G-tests with late and lost drafts: {SESSIONS} joint sequences of {LENGTH} tokens a cell"
SHORT = {"timeout": 0.03, "probe": 0.01, "overload_pause": 0.02}
"""Timeouts in seconds. A round waits less for its drafts than the longest stall of a link."""


@dataclass(frozen=True)
class Cell:
    """One law to test."""

    mode: Mode
    batch: int
    """Number of sessions served at any time."""

    def __str__(self) -> str:
        return f"{self.mode}, {self.batch} at once"


BATCHES = (1, 2, 3, 8)
CELLS = [Cell(mode, batch) for mode, batch in product((Mode.REJECTION, Mode.BLOCK), BATCHES)]
Served = dict[Cell, list[Done]]


@pytest.fixture(scope="module")
def served() -> Served:
    """Return the outputs of every cell's sessions. Both modes share their batches."""
    return asyncio.run(_serve())


async def _serve() -> Served:
    results: Served = {cell: [] for cell in CELLS}
    async with AsyncExitStack() as stack:
        links = []
        for seed in range(DRAFTERS):
            running = await stack.enter_async_context(running_drafter(small().drafter, support=3, ahead=2))
            links.append(await stack.enter_async_context(unsteady(running.address, seed, Weather())))
        client = await stack.enter_async_context(running_verifier(small().target, *links, drafting=SHORT))
        for batch in BATCHES:
            work = [(cell, ask) for cell in CELLS if cell.batch == batch for ask in _asks(cell)]
            random.Random(batch).shuffle(work)
            answers = await generate(client, [ask for _, ask in work], batch)
            for (cell, _), done in zip(work, answers, strict=True):
                results[cell].append(done)
    return results


def _asks(cell: Cell) -> list[Ask]:
    first = CELLS.index(cell) * SESSIONS
    return [
        Ask(cell.mode, SamplingParams(seed=first + index), GAMMAS[index % len(GAMMAS)], PROMPT, LENGTH, (END,))
        for index in range(SESSIONS)
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_joint_law_is_the_targets(cell: Cell, served: Served, note: Note) -> None:
    law = small().plain.law(SamplingParams(), PROMPT, LENGTH, END)
    found = p_value([done.tokens for done in served[cell]], law)
    note(TITLE, f"{cell!s:22} p = {found:.2g}")
    assert found >= P_VALUE


@pytest.mark.timeout(600)
def test_drafts_were_late_lost_and_kept(served: Served, note: Note) -> None:
    rounds = [each for answers in served.values() for done in answers for each in done.rounds]
    reasons = Counter(each.fallback_reason for each in rounds)
    origins = Counter(origin for each in rounds for origin in each.origins)
    note(TITLE, ", ".join(f"{reason or 'drafted or not wanted'} {count}" for reason, count in reasons.most_common()))
    assert reasons["late"] > SESSIONS / 10
    assert reasons["drafter_unavailable"] > SESSIONS / 10
    assert origins[common.TOKEN_ORIGIN_ACCEPTED] > SESSIONS / 5
    assert origins[common.TOKEN_ORIGIN_RECOVERED] > SESSIONS / 10
