"""Trees of drafts serve the target's law: joint G-tests of four tokens, and greedy identity.

A real drafter grows the trees and a real verifier judges them, in batches that mix trees of every kind with chains:
siblings drawn with and without replacement, likeliest children, and trees of two drafters that are judged as one.
Generations are longer than the tested sequences, so that there is room for every node. Seeds are fixed. A cell is 80
sessions and fails below p = 1e-6.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import pytest

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.speculation import Mode, TreeOptions
from specdec.sampling.params import SamplingParams
from tests.conformance.g_test import Law, p_value
from tests.conformance.notes import Note
from tests.conformance.served_pair import Ask, Done, generate, running_drafter, running_verifier
from tests.conformance.small_pair import END, REPETITIVE, small

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SESSIONS = 80
TESTED = 4
LENGTH = 7
P_VALUE = 1e-6
AT_ONCE = 64
GREEDY = 8
TITLE = f"G-tests of served trees: {SESSIONS} joint sequences of {TESTED} tokens a cell"
PARAMS = {
    "T=1": SamplingParams(),
    "top-p": SamplingParams(top_p=0.8),
    "penalties": SamplingParams(presence_penalty=1.0, frequency_penalty=0.8, repetition_penalty=1.4),
}
TREES = {
    "chain": None,
    "without": TreeOptions(5, 2, 3),
    "with": TreeOptions(5, 3, 2, replacement=True),
    "two drafters": TreeOptions(6, 2, 2, drafters=("model", "hybrid")),
    "beside n-grams": TreeOptions(5, 2, 2, replacement=True, drafters=("ngram", "model")),
}


@dataclass(frozen=True)
class Cell:
    """One law to test."""

    tree: str
    params: str = "T=1"
    mode: Mode = Mode.REJECTION

    def __str__(self) -> str:
        return f"{self.tree}, {self.mode}, {self.params}"

    def asks(self, number: int, sessions: int = SESSIONS) -> list[Ask]:
        """Return the sessions of the cell. No two cells share a seed."""
        tree = TREES[self.tree]
        return [
            Ask(
                self.mode,
                replace(PARAMS[self.params], seed=number * SESSIONS + index),
                2 if tree is None else None,
                REPETITIVE,
                LENGTH,
                (END,),
                tree=tree,
            )
            for index in range(sessions)
        ]


CELLS = [
    Cell("chain"),
    Cell("without"),
    Cell("without", "top-p"),
    Cell("without", "penalties"),
    Cell("without", mode=Mode.COUPLED),
    Cell("with"),
    Cell("two drafters", "penalties"),
    Cell("beside n-grams"),
]
Served = tuple[dict[Cell, list[Done]], dict[str, list[Done]]]


@cache
def law_of(params: str) -> Law:
    """Return the target's law under these parameters, by transformers."""
    return small().plain.law(PARAMS[params], REPETITIVE, TESTED, END)


def greedy(tree: str) -> list[Ask]:
    """Return generations at temperature 0 from several prompts."""
    params, options = SamplingParams(temperature=0.0), TREES[tree]
    prompts = [(*REPETITIVE, 1 + number % 7, 1 + number // 7) for number in range(GREEDY)]
    mode = Mode.OFF if options is None else Mode.REJECTION
    return [Ask(mode, params, None, prompt, 3 * LENGTH, tree=options) for prompt in prompts]


@pytest.fixture(scope="module")
def served() -> Served:
    """Return the outputs of every cell's sessions, and the greedy outputs by tree."""
    work: list[tuple[Cell | str, Ask]] = [(cell, ask) for at, cell in enumerate(CELLS) for ask in cell.asks(at)]
    work += [(tree, ask) for tree in TREES for ask in greedy(tree)]
    order = list(range(len(work)))
    random.Random(1).shuffle(order)
    done = dict(zip(order, asyncio.run(run([work[index][1] for index in order])), strict=True))
    cells: dict[Cell, list[Done]] = {cell: [] for cell in CELLS}
    trees: dict[str, list[Done]] = {tree: [] for tree in TREES}
    for index, (where, _) in enumerate(work):
        (cells[where] if isinstance(where, Cell) else trees[where]).append(done[index])
    return cells, trees


async def run(asks: list[Ask]) -> list[Done]:
    """Serve with two drafters of one model."""
    drafting = {"support": 3, "ahead": 2}
    async with (
        running_drafter(small().drafter, **drafting) as one,
        running_drafter(small().drafter, kind="hybrid", first="prompt_lookup", **drafting) as two,
        running_verifier(small().target, one.address, two.address) as client,
    ):
        return await generate(client, asks, AT_ONCE)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_joint_law_is_the_targets(cell: Cell, served: Served, note: Note) -> None:
    found = p_value([done.tokens[:TESTED] for done in served[0][cell]], law_of(cell.params))
    note(TITLE, f"{cell!s:36} p = {found:.2g}")
    assert found >= P_VALUE


@pytest.mark.parametrize("cell", CELLS[1:], ids=str)
def test_trees_fork_and_their_rounds_end_in_every_way(cell: Cell, served: Served) -> None:
    rounds = [response for done in served[0][cell] for response in done.rounds]
    origins = Counter(origin for response in rounds for origin in response.origins)
    kinds = (common.TOKEN_ORIGIN_ACCEPTED, common.TOKEN_ORIGIN_RECOVERED, common.TOKEN_ORIGIN_BONUS)
    assert all(origins[kind] > SESSIONS / 20 for kind in kinds)
    options = TREES[cell.tree]
    assert options is not None
    assert options.depth < max(len(response.draft_tokens) // 4 for response in rounds) <= options.nodes
    assert max(response.accepted for response in rounds) <= options.depth


@pytest.mark.parametrize("tree", [tree for tree in TREES if tree != "chain"])
def test_greedy_trees_give_the_tokens_of_plain_decoding(tree: str, served: Served) -> None:
    greedy_rounds = [response for done in served[1][tree] for response in done.rounds]
    assert [done.tokens for done in served[1][tree]] == [done.tokens for done in served[1]["chain"]]
    assert sum(response.accepted for response in greedy_rounds) > GREEDY
