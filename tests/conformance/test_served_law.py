"""What VerifierService.Generate serves has the target's law: joint G-tests of four tokens through both real services.

All cells of the table run as one workload: 10,800 sessions of every mode, sampling and draft length, shuffled, 128 at a
time, so that every batch mixes them. A cell is 400 sessions with seeds of its own. Its expected law comes from float64
forwards of transformers and a restatement of the sampling rules; an output ends with the end token or after four
tokens, and outputs expected fewer than ten times are pooled with those of the same beginning.

A cell fails below p = 1e-6. There are 27 of them, so sound code fails this file in 27 × 1e-6 = 2.7e-5 of its runs
(Bonferroni, as far as G follows χ²). The planted bugs beside this file are all caught at the same p.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from protos.common.v1 import common_pb2 as common
from specdec.params import Mode, SamplingParams
from tests.conformance.conftest import Pair
from tests.conformance.g_test import p_value
from tests.conformance.served import Ask, Done, generate, pair

SESSIONS = 400
LENGTH = 4
P_VALUE = 1e-6
PROMPT = (3, 5, 1, 6)
END = 0
AT_ONCE = 128
SUPPORT = 3
"""Ids in q̂: five of the eight are cut off."""
AHEAD = 2
GAMMAS = (3, 1, 2, 0, 3)

PARAMS = {
    "T=1": SamplingParams(),
    "T=0.7": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(top_k=3),
    "top-p": SamplingParams(top_p=0.8),
    "min-p": SamplingParams(min_p=0.15),
    "penalties": SamplingParams(
        presence_penalty=1.0, frequency_penalty=0.8, repetition_penalty=1.4, min_tokens=2, end_token_ids=(END,)
    ),
}


@dataclass(frozen=True)
class Cell:
    """One law to test."""

    mode: Mode
    params: str
    auto: bool = False
    """Whether the verifier chooses γ, which makes every draw depend on the clock as well."""

    def __str__(self) -> str:
        return f"{self.mode}, {self.params}" + (", auto" if self.auto else "")


CELLS = [
    *(Cell(mode, params) for mode in Mode for params in PARAMS),
    *(Cell(mode, "T=1", auto=True) for mode in Mode if mode is not Mode.OFF),
]
Served = dict[Cell, list[Done]]


def asks(number: int, cell: Cell) -> list[Ask]:
    """The sessions of a cell; no two of any cells share a seed."""
    return [
        Ask(
            cell.mode,
            replace(PARAMS[cell.params], seed=number * SESSIONS + index),
            None if cell.auto else GAMMAS[index % len(GAMMAS)],
            PROMPT,
            LENGTH,
            (END,),
        )
        for index in range(SESSIONS)
    ]


@pytest.fixture(scope="module")
def served(small: Pair) -> Served:
    """What every cell's sessions generated."""
    work = [(cell, ask) for number, cell in enumerate(CELLS) for ask in asks(number, cell)]
    random.Random(1).shuffle(work)

    async def run() -> list[Done]:
        async with pair(small.target, small.drafter, support=SUPPORT, ahead=AHEAD) as client:
            return await generate(client, [ask for _, ask in work], AT_ONCE)

    results: Served = {cell: [] for cell in CELLS}
    for (cell, _), done in zip(work, asyncio.run(run()), strict=True):
        results[cell].append(done)
    return results


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_joint_law_is_the_targets(cell: Cell, served: Served, small: Pair, note: Callable[[str], None]) -> None:
    law = small.plain.law(PARAMS[cell.params], PROMPT, LENGTH, END)
    found = p_value([done.tokens for done in served[cell]], law)
    note(f"{cell!s:28} p = {found:.2g}")
    assert found >= P_VALUE


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.mode is not Mode.OFF and not cell.auto], ids=str)
def test_these_sessions_speculate_and_take_every_kind_of_token(cell: Cell, served: Served) -> None:
    rounds = [response for done in served[cell] for response in done.rounds]
    assert not any(response.fallback_reason for response in rounds), "no draft was late"
    origins = Counter(origin for response in rounds for origin in response.origins)
    kinds = (common.TOKEN_ORIGIN_ACCEPTED, common.TOKEN_ORIGIN_RECOVERED, common.TOKEN_ORIGIN_BONUS)
    assert all(origins[kind] > SESSIONS / 10 for kind in (*kinds, common.TOKEN_ORIGIN_PLAIN))
    assert {len(response.draft_tokens) // 4 for response in rounds} == {0, 1, 2, 3}
