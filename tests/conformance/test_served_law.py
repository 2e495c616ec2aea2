"""VerifierService.Generate serves the target's law: joint G-tests of four tokens through both real services.

All cells of a drafter run as one workload: sessions of every mode, sampling and draft length, shuffled, 256 at a time,
so that every batch mixes them. A cell is 250 sessions with seeds of its own. The drafters are a language model,
bigrams, prompt lookup, prompt lookup before a model, and random tokens. With lenience the law is the published one,
which differs from the target's, and those cells are marked lossy.

The expected law comes from float64 forward passes of transformers and a restatement of the sampling rules. An output
ends with the end token or after four tokens. Outputs expected fewer than ten times are pooled with those of the same
prefix.

A cell fails below p = 1e-6. With 40 cells, sound code fails this file in 40 × 1e-6 = 4e-5 of its runs (Bonferroni, if
G follows χ²; the false alarm rate on samples of the laws themselves is measured below and printed). The planted bugs
are caught at the same p.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import pytest

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.automata import LOOP
from tests.conformance.g_test import Law, false_alarms, p_value
from tests.conformance.lenient_law import Rounds
from tests.conformance.notes import Note
from tests.conformance.served_pair import Ask, Done, generate, pair
from tests.conformance.small_pair import END, PROMPT, REPETITIVE, small
from tests.conformance.table_models import Context

pytestmark = pytest.mark.integration

SESSIONS = 250
LENGTH = 4
TITLE = f"G-tests of what is served: {SESSIONS} joint sequences of {LENGTH} tokens a cell"
P_VALUE = 1e-6
LOSSY = 1e-12
AT_ONCE = 256
TRIALS = 2_000
SUPPORT = 3
"""Number of ids in q̂; the other five of the eight are cut off."""
AHEAD = 2
GAMMAS = (3, 1, 2, 0, 3)
LENIENT_GAMMA = 2

Kind = Literal["model", "counts", "prompt_lookup", "hybrid", "random"]
"""Kind of drafter."""
PARAMS = {
    "T=1": SamplingParams(),
    "T=0.7": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(top_k=3),
    "top-p": SamplingParams(top_p=0.8),
    "min-p": SamplingParams(min_p=0.15),
    "penalties": SamplingParams(
        presence_penalty=1.0, frequency_penalty=0.8, repetition_penalty=1.4, min_tokens=2, end_token_ids=(END,)
    ),
    "grammar": SamplingParams(grammar=LOOP),
}


@dataclass(frozen=True)
class Cell:
    """One law to test."""

    mode: Mode
    params: str
    auto: bool = False
    """Whether the verifier chooses γ, which makes every draw depend on the clock as well."""
    drafter: Kind = "model"
    lenience: float = 1.0

    def __str__(self) -> str:
        parts = [self.mode, self.params, *(["auto"] if self.auto else [])]
        parts += [self.drafter] if self.drafter != "model" else []
        parts += [f"ℓ = {self.lenience} (lossy)"] if self.lenience < 1.0 else []
        return ", ".join(parts)

    @property
    def prompt(self) -> Context:
        """Return the prompt that the sessions continue."""
        return REPETITIVE if self.drafter in ("prompt_lookup", "hybrid") else PROMPT

    @property
    def gammas(self) -> Sequence[int | None]:
        """Draft lengths by session. None is the verifier's choice.

        The effect of lenience depends on where rounds end.
        """
        if self.auto:
            return (None,)
        return GAMMAS if self.lenience == 1.0 else (LENIENT_GAMMA,)

    def law(self) -> Law:
        """Return the target's law by transformers, or with lenience the published law."""
        if self.lenience == 1.0:
            return law_of(self.params, self.prompt)
        models = small().plain, small().plain_drafter
        rounds = Rounds(*models, PARAMS[self.params], SUPPORT, LENIENT_GAMMA, self.lenience)
        return rounds.law(self.prompt, LENGTH, END)


CELLS = [
    *(Cell(mode, params) for mode in Mode for params in PARAMS),
    *(Cell(mode, "T=1", auto=True) for mode in Mode if mode is not Mode.OFF),
    *(Cell(mode, "T=1", drafter="prompt_lookup") for mode in Mode if mode is not Mode.OFF),
    Cell(Mode.REJECTION, "penalties", drafter="prompt_lookup"),
    *(Cell(mode, "T=1", drafter="hybrid") for mode in Mode if mode is not Mode.OFF),
    *(Cell(mode, "T=1", drafter="counts") for mode in (Mode.REJECTION, Mode.BLOCK)),
    Cell(Mode.REJECTION, "penalties", drafter="counts"),
    *(Cell(mode, "T=1", drafter="random") for mode in Mode if mode is not Mode.OFF),
    *(Cell(Mode.REJECTION, "T=1", lenience=lenience) for lenience in (0.5, 0.3)),
]
Served = dict[Cell, list[Done]]
SPECULATING = [
    cell
    for cell in CELLS
    if cell.mode is not Mode.OFF
    and not cell.auto
    and cell.lenience == 1.0
    and cell.drafter in ("model", "counts")
    and cell.params != "grammar"  # a drafter whose grammar is not compiled yet ends a draft early
]


@cache
def law_of(params: str, prompt: Context = PROMPT) -> Law:
    """Return the target's law under these parameters, by transformers."""
    return small().plain.law(PARAMS[params], prompt, LENGTH, END)


def folder_of(drafter: Kind) -> Path:
    """Return the drafter's folder. Prompt lookup needs only the tokenizer."""
    return small().counts if drafter == "counts" else small().drafter


def asks(number: int, cell: Cell) -> list[Ask]:
    """Return the sessions of a cell. No two cells share a seed."""
    return [
        Ask(
            cell.mode,
            replace(PARAMS[cell.params], seed=number * SESSIONS + index),
            cell.gammas[index % len(cell.gammas)],
            cell.prompt,
            LENGTH,
            (END,),
            lenience=cell.lenience if cell.lenience < 1.0 else None,
        )
        for index in range(SESSIONS)
    ]


@pytest.fixture(scope="module")
def served() -> Served:
    """Return the outputs of every cell's sessions."""
    results: Served = {cell: [] for cell in CELLS}
    for drafter in get_args(Kind):
        work = [(cell, ask) for at, cell in enumerate(CELLS) if cell.drafter == drafter for ask in asks(at, cell)]
        random.Random(1).shuffle(work)
        for (cell, _), done in zip(work, asyncio.run(run(drafter, [ask for _, ask in work])), strict=True):
            results[cell].append(done)
    return results


async def run(drafter: Kind, work: Sequence[Ask]) -> list[Done]:
    """Serve with a drafter of that kind."""
    drafting = {"kind": drafter, "first": "prompt_lookup", "support": SUPPORT, "ahead": AHEAD}
    async with pair(small().target, folder_of(drafter), **drafting) as client:
        return await generate(client, work, AT_ONCE)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_joint_law_is_the_targets_or_with_lenience_the_published_one(
    cell: Cell, served: Served, note: Note
) -> None:
    found = p_value([done.tokens for done in served[cell]], cell.law())
    note(TITLE, f"{cell!s:36} p = {found:.2g}")
    assert found >= P_VALUE


@pytest.mark.parametrize("params", PARAMS)
def test_the_g_test_cries_wolf_as_rarely_as_it_says(params: str, note: Note) -> None:
    """Test samples of the law itself, at a p that 2,000 of them can measure, within five standard errors."""
    alarms = false_alarms(law_of(params), SESSIONS, below=0.01, trials=TRIALS)
    whole = len(CELLS) * P_VALUE
    note(TITLE, f"false alarms, {params}: {alarms:.2%} at p < 1%; of all cells at p < {P_VALUE:g}: {whole:.1e} a run")
    assert abs(alarms - 0.01) < 5 * (0.01 * 0.99 / TRIALS) ** 0.5


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", SPECULATING, ids=str)
def test_these_sessions_speculate_and_take_every_kind_of_token(cell: Cell, served: Served) -> None:
    rounds = [response for done in served[cell] for response in done.rounds]
    assert not any(response.fallback_reason for response in rounds), "no draft was late"
    origins = Counter(origin for response in rounds for origin in response.origins)
    kinds = (common.TOKEN_ORIGIN_ACCEPTED, common.TOKEN_ORIGIN_RECOVERED, common.TOKEN_ORIGIN_BONUS)
    assert all(origins[kind] > SESSIONS / 10 for kind in (*kinds, common.TOKEN_ORIGIN_PLAIN))
    assert {len(response.draft_tokens) // 4 for response in rounds} == {0, 1, 2, 3}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.lenience < 1.0], ids=str)
def test_lenience_is_lossy(cell: Cell, served: Served) -> None:
    """If the published law were the target's, the tests of lenience would show nothing."""
    assert p_value([done.tokens for done in served[cell]], law_of(cell.params)) < LOSSY


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.drafter == "prompt_lookup"], ids=str)
def test_looked_up_drafts_are_judged_and_kept_or_not(cell: Cell, served: Served) -> None:
    origins = Counter(origin for done in served[cell] for response in done.rounds for origin in response.origins)
    kinds = (common.TOKEN_ORIGIN_ACCEPTED, common.TOKEN_ORIGIN_RECOVERED, common.TOKEN_ORIGIN_BONUS)
    assert all(origins[kind] > SESSIONS / 20 for kind in kinds)
