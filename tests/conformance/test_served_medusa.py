"""Drafts of Medusa heads serve the target's law: joint G-tests of four tokens through the real services.

Three heads draft for five of eight ids. Each guesses its token without those drafted before it. Seeds are fixed. A cell
is 250 sessions and fails below p = 1e-6. A planted bug of q̂ must fail.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.draft import SparseProbs
from specdec.rules.speculation import Mode
from tests.conformance.g_test import p_value
from tests.conformance.headed_pair import DRAFT_IDS, LENGTH, PARAMS, folders, law_of
from tests.conformance.model_folders import root
from tests.conformance.notes import Note
from tests.conformance.served_pair import Ask, Done, generate, running_verifier
from tests.conformance.small_pair import END, PROMPT, VOCAB_SIZE
from tests.support.tiny_medusa import make_tiny_medusa
from verifier_service.backends import head_drafter

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SESSIONS, AT_ONCE, P_VALUE = 250, 64, 1e-6
GAMMAS = (3, 1, 2, 5)
"""The last is more than there are heads."""
TITLE = f"G-tests of Medusa heads: {SESSIONS} joint sequences of {LENGTH} tokens a cell"
CELLS = [
    *((mode, "T=1") for mode in Mode if mode is not Mode.OFF),
    (Mode.REJECTION, "top-p"),
    (Mode.BLOCK, "penalties"),
    (Mode.REJECTION, "grammar"),
]


@cache
def heads() -> Path:
    shape = {"vocab": VOCAB_SIZE, "draft_vocab": len(DRAFT_IDS), "ids": DRAFT_IDS}
    return make_tiny_medusa(root() / "medusa", "vllm", heads=3, spread=0.3, seed=3, **shape)


def serve(mode: Mode, params: str) -> list[Done]:
    """Return the outputs of a cell's sessions. No two cells share a seed."""
    first = CELLS.index((mode, params)) * SESSIONS
    asks = [
        Ask(mode, replace(PARAMS[params], seed=first + index), GAMMAS[index % 4], PROMPT, LENGTH, (END,))
        for index in range(SESSIONS)
    ]

    async def run() -> list[Done]:
        async with running_verifier(folders()[0], head=heads()) as client:
            return await generate(client, asks, AT_ONCE)

    return asyncio.run(run())


@pytest.mark.parametrize(("mode", "params"), CELLS)
def test_the_joint_law_is_the_targets(mode: Mode, params: str, note: Note) -> None:
    done = serve(mode, params)
    found = p_value([each.tokens for each in done], law_of(params))
    note(TITLE, f"{mode!s:12} {params:12} p = {found:.2g}")
    assert found >= P_VALUE
    rounds = [each for one in done for each in one.rounds]
    origins = Counter(origin for each in rounds for origin in each.origins)
    assert origins[common.TOKEN_ORIGIN_ACCEPTED] > SESSIONS / 20
    assert origins[common.TOKEN_ORIGIN_RECOVERED] > SESSIONS / 20
    assert {each.drafter for each in rounds} - {"", "grammar"} == {"head"}


def test_greedy_tokens_are_the_targets() -> None:
    law = law_of("T=0")

    async def run() -> list[Done]:
        asks = [Ask(Mode.REJECTION, PARAMS["T=0"], gamma, PROMPT, LENGTH, (END,)) for gamma in GAMMAS]
        async with running_verifier(folders()[0], head=heads()) as client:
            return await generate(client, asks, AT_ONCE)

    assert {done.tokens for done in asyncio.run(run())} == {max(law, key=lambda output: law[output])}


def test_a_distribution_of_other_ids_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = head_drafter.propose_each

    def proposed(*given: Any, **named: Any) -> list[tuple[int, SparseProbs | None]]:
        made = propose(*given, **named)
        return [(token, probs and SparseProbs(probs.ids, probs.weights.flip(0))) for token, probs in made]

    monkeypatch.setattr(head_drafter, "propose_each", proposed)
    done = serve(Mode.REJECTION, "T=1")
    assert p_value([each.tokens for each in done], law_of("T=1")) < P_VALUE
