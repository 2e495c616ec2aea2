"""What VerifierService.Generate serves has the target's law: joint G-tests of four tokens through both real services.

All cells of the table run as one workload: 10,800 sessions of every mode, sampling and draft length, shuffled, 128 at a
time, so that every batch mixes them. A cell is 400 sessions with seeds of its own. Its expected law comes from float64
forwards of transformers and a restatement of the sampling rules; an output ends with the end token or after four
tokens, and outputs expected fewer than ten times are pooled with those of the same beginning.

A cell fails below p = 1e-6. There are 27 of them, so sound code fails this file in 27 × 1e-6 = 2.7e-5 of its runs
(Bonferroni, as far as G follows χ²; how far it does is measured below, on samples of the laws themselves, and printed).
The planted bugs are caught at the same p.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import pytest

from protos.common.v1 import common_pb2 as common
from specdec.params import Mode, SamplingParams
from tests.conformance.conftest import Note
from tests.conformance.g_test import Law, false_alarms, p_value
from tests.conformance.served import Ask, Done, generate, pair
from tests.conformance.small import END, PROMPT, small

pytestmark = pytest.mark.integration

SESSIONS = 400
LENGTH = 4
TITLE = f"G-tests of what is served: {SESSIONS} joint sequences of {LENGTH} tokens a cell"
P_VALUE = 1e-6
AT_ONCE = 128
TRIALS = 2_000
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


@cache
def law_of(params: str) -> Law:
    """Of the target under these parameters, by transformers."""
    return small().plain.law(PARAMS[params], PROMPT, LENGTH, END)


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
def served() -> Served:
    """What every cell's sessions generated."""
    work = [(cell, ask) for number, cell in enumerate(CELLS) for ask in asks(number, cell)]
    random.Random(1).shuffle(work)

    async def run() -> list[Done]:
        async with pair(small().target, small().drafter, support=SUPPORT, ahead=AHEAD) as client:
            return await generate(client, [ask for _, ask in work], AT_ONCE)

    results: Served = {cell: [] for cell in CELLS}
    for (cell, _), done in zip(work, asyncio.run(run()), strict=True):
        results[cell].append(done)
    return results


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_joint_law_is_the_targets(cell: Cell, served: Served, note: Note) -> None:
    law = law_of(cell.params)
    found = p_value([done.tokens for done in served[cell]], law)
    note(TITLE, f"{cell!s:28} p = {found:.2g}")
    assert found >= P_VALUE


@pytest.mark.parametrize("params", PARAMS)
def test_the_g_test_cries_wolf_as_rarely_as_it_says(params: str, note: Note) -> None:
    """Samples of the law itself, at a p that 2,000 of them can measure; five standard errors."""
    alarms = false_alarms(law_of(params), SESSIONS, below=0.01, trials=TRIALS)
    whole = len(CELLS) * P_VALUE
    note(TITLE, f"false alarms, {params}: {alarms:.2%} at p < 1%; of all cells at p < {P_VALUE:g}: {whole:.1e} a run")
    assert abs(alarms - 0.01) < 5 * (0.01 * 0.99 / TRIALS) ** 0.5


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.mode is not Mode.OFF and not cell.auto], ids=str)
def test_these_sessions_speculate_and_take_every_kind_of_token(cell: Cell, served: Served) -> None:
    rounds = [response for done in served[cell] for response in done.rounds]
    assert not any(response.fallback_reason for response in rounds), "no draft was late"
    origins = Counter(origin for response in rounds for origin in response.origins)
    kinds = (common.TOKEN_ORIGIN_ACCEPTED, common.TOKEN_ORIGIN_RECOVERED, common.TOKEN_ORIGIN_BONUS)
    assert all(origins[kind] > SESSIONS / 10 for kind in (*kinds, common.TOKEN_ORIGIN_PLAIN))
    assert {len(response.draft_tokens) // 4 for response in rounds} == {0, 1, 2, 3}
