"""Sessions whose drafts come from a target's head, served by a real verifier."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specdec.rules.speculation import Mode
from tests.conformance.headed_pair import LENGTH, PARAMS, folders
from tests.conformance.served_pair import Ask, Done, generate, running_verifier
from tests.conformance.small_pair import END, PROMPT

SESSIONS = 250
P_VALUE = 1e-6
AT_ONCE = 64
GAMMAS = (3, 1, 2, 3)
DRAFTING = [mode for mode in Mode if mode is not Mode.OFF]


@dataclass(frozen=True)
class Cell:
    """One law to test."""

    mode: Mode
    params: str = "T=1"

    def __str__(self) -> str:
        return f"{self.mode}, {self.params}"

    def asks(self) -> list[Ask]:
        """Return the sessions of the cell. No two cells share a seed."""
        number = 100 * DRAFTING.index(self.mode) + list(PARAMS).index(self.params)
        return [
            Ask(
                self.mode,
                replace(PARAMS[self.params], seed=number * SESSIONS + index),
                GAMMAS[index % len(GAMMAS)],
                PROMPT,
                LENGTH,
                (END,),
                drafter="head" if index % 2 else "",
            )
            for index in range(SESSIONS)
        ]


Served = dict[Cell, list[Done]]


def serve(cells: Sequence[Cell]) -> Served:
    """Return the outputs of every cell's sessions, in the order of their seeds."""
    work = [(cell, ask) for cell in cells for ask in cell.asks()]
    random.Random(1).shuffle(work)
    results: Served = {cell: [] for cell in cells}
    done = zip(work, asyncio.run(run([ask for _, ask in work])), strict=True)
    for (cell, _), found in sorted(done, key=lambda each: each[0][1].params.seed or 0):
        results[cell].append(found)
    return results


async def run(work: list[Ask], *, with_head: bool = True) -> list[Done]:
    """Serve the target, with its head unless told otherwise."""
    target, head, _ = folders()
    async with running_verifier(target, head=head if with_head else None) as client:
        return await generate(client, work, AT_ONCE)
