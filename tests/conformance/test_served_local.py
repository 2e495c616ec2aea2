"""Sources inside the verifier also serve the target's law: joint G-tests of four tokens.

Drafts are point masses. Every kind of source drafts in every mode, and n-grams also under penalties, a bias and masks.
N-grams also draw their drafts from their counts, in the verifier and in a drafter.
A hybrid asks a drafter when its source has no answer, so that the rounds of a session differ in their draft source. All
cells run as one workload, so that suffixes of all sessions are in one store. Seeds are fixed. A cell is 250 sessions
and fails below p = 1e-6, so sound code fails one of the 28 cells in 3e-5 of the runs.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import pytest

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.g_test import Law, p_value
from tests.conformance.notes import Note
from tests.conformance.served_pair import Ask, Done, generate, running_drafter, running_verifier
from tests.conformance.small_pair import END, REPETITIVE, small

pytestmark = pytest.mark.integration

SESSIONS = 250
LENGTH = 4
P_VALUE = 1e-6
AT_ONCE = 128
GAMMAS = (3, 1, 2, 3)
PREDICTION = (1, 6, 3, 5, 1)
TITLE = f"G-tests of sources in the verifier: {SESSIONS} joint sequences of {LENGTH} tokens a cell"
PARAMS = {
    "T=1": SamplingParams(),
    "T=0": SamplingParams(temperature=0.0),
    "top-p": SamplingParams(temperature=0.8, top_p=0.8),
    "penalties": SamplingParams(
        presence_penalty=1.0, frequency_penalty=0.8, repetition_penalty=1.4, min_tokens=2, end_token_ids=(END,)
    ),
    "bias": SamplingParams(logit_bias={1: 1.5, 6: -1.0}),
    "masks": SamplingParams(banned_token_ids=(1,), allowed_token_ids=(END, 1, 3, 5, 6)),
}
DRAFTING = [mode for mode in Mode if mode is not Mode.OFF]
KINDS = ("ngram", "prompt_lookup", "suffix", "prediction", "hybrid")


@dataclass(frozen=True)
class Cell:
    """One law to test."""

    mode: Mode
    params: str = "T=1"
    drafter: str = "ngram"
    sampled: Literal["", "in the verifier", "in a drafter"] = ""
    """Where drafts are drawn from counts; empty for point masses."""

    def __str__(self) -> str:
        drawn = f", sampled {self.sampled}" if self.sampled else ""
        return f"{self.drafter}, {self.mode}, {self.params}{drawn}"

    def asks(self, number: int) -> list[Ask]:
        """Return the sessions of the cell. No two cells share a seed."""
        return [
            Ask(
                self.mode,
                replace(PARAMS[self.params], seed=number * SESSIONS + index),
                GAMMAS[index % len(GAMMAS)],
                REPETITIVE,
                LENGTH,
                (END,),
                drafter="" if self.sampled else self.drafter,
                prediction=PREDICTION if self.drafter == "prediction" else (),
            )
            for index in range(SESSIONS)
        ]


CELLS = [
    *(Cell(mode, drafter=drafter) for drafter in KINDS for mode in DRAFTING),
    *(Cell(Mode.REJECTION, params) for params in PARAMS if params != "T=1"),
    *(Cell(mode, sampled="in the verifier") for mode in DRAFTING),
    *(Cell(Mode.REJECTION, params, sampled="in the verifier") for params in ("T=0", "penalties", "masks")),
    *(Cell(mode, sampled="in a drafter") for mode in DRAFTING),
]
SAMPLED = [cell for cell in CELLS if cell.params == "T=1"]
Served = dict[Cell, list[Done]]


@cache
def law_of(params: str) -> Law:
    """Return the target's law, by transformers."""
    return small().plain.law(PARAMS[params], REPETITIVE, LENGTH, END)


@pytest.fixture(scope="module")
def served() -> Served:
    """Return the outputs of every cell's sessions."""
    results: Served = {cell: [] for cell in CELLS}
    for run in (run_local, run_sampled, run_drafter):
        work = [
            (cell, ask) for number, cell in enumerate(CELLS) if RUNS[cell.sampled] is run for ask in cell.asks(number)
        ]
        random.Random(1).shuffle(work)
        for (cell, _), done in zip(work, asyncio.run(run([ask for _, ask in work])), strict=True):
            results[cell].append(done)
    return results


async def run_local(work: list[Ask]) -> list[Done]:
    """Serve with a drafter, which only the hybrid asks."""
    async with (
        running_drafter(small().drafter) as drafter,
        running_verifier(small().target, drafter.address, local=["prompt_lookup"]) as client,
    ):
        return await generate(client, work, AT_ONCE)


async def run_sampled(work: list[Ask]) -> list[Done]:
    """Serve n-grams of the verifier, which draw their drafts from their counts, before a drafter's model."""
    async with (
        running_drafter(small().drafter) as drafter,
        running_verifier(small().target, drafter.address, local=["ngram"], sources={"sampled": True}) as client,
    ):
        return await generate(client, work, AT_ONCE)


async def run_drafter(work: list[Ask]) -> list[Done]:
    """Serve n-grams of a drafter, which draw their drafts from their counts."""
    async with (
        running_drafter(small().drafter, kind="ngram", sources={"sampled": True}) as drafter,
        running_verifier(small().target, drafter.address) as client,
    ):
        return await generate(client, work, AT_ONCE)


RUNS = {"": run_local, "in the verifier": run_sampled, "in a drafter": run_drafter}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_joint_law_is_the_targets(cell: Cell, served: Served, note: Note) -> None:
    law = law_of(cell.params)
    if cell.params == "T=0":
        assert {done.tokens for done in served[cell]} == {max(law, key=lambda output: law[output])}
        return
    found = p_value([done.tokens for done in served[cell]], law)
    note(TITLE, f"{cell!s:36} p = {found:.2g}")
    assert found >= P_VALUE


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", SAMPLED, ids=str)
def test_drafts_are_judged_and_kept_or_not(cell: Cell, served: Served) -> None:
    rounds = [response for done in served[cell] for response in done.rounds]
    origins = Counter(origin for response in rounds for origin in response.origins)
    assert origins[common.TOKEN_ORIGIN_ACCEPTED] > SESSIONS / 20
    assert origins[common.TOKEN_ORIGIN_RECOVERED] > SESSIONS / 20
    drafters = {response.drafter for response in rounds} - {""}
    both = {"hybrid": {"prompt_lookup", "model"}}.get(cell.drafter, {cell.drafter})
    assert drafters == (both | {"model"} if cell.sampled == "in the verifier" else both)
