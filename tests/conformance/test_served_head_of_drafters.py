"""Drafts of a head in a drafter are those of the same head in the verifier, and serve the target's law.

A cell is 200 sessions of four tokens over hop 2 and fails below p = 1e-6. A planted bug of q̂ must fail.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from drafter_service.drafters import model_drafter
from specdec.protos.common.v1 import common_pb2 as common
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.draft import SparseProbs
from specdec.rules.speculation import Mode
from tests.conformance.g_test import p_value
from tests.conformance.headed_pair import LENGTH, PARAMS, folders, law_of
from tests.conformance.notes import Note
from tests.conformance.served_pair import ANY_PORT, Ask, Done, call, generate, running_drafter, running_verifier
from tests.conformance.small_pair import END, PROMPT, VOCAB_SIZE
from tests.integration.verifier.client import Client, connected
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SESSIONS = 200
P_VALUE = 1e-6
AT_ONCE = 64
GAMMAS = (3, 1, 2, 3)
LONG = 50
TITLE = f"G-tests of a draft head in a drafter: {SESSIONS} joint sequences of {LENGTH} tokens a cell"
MODES = [mode for mode in Mode if mode is not Mode.OFF]
CELLS = [
    *((mode, "T=1") for mode in MODES),
    *((Mode.REJECTION, params) for params in ("top-p", "penalties", "grammar")),
    (Mode.BLOCK, "penalties"),
]
Cell = tuple[Mode, str]


def asks(cell: Cell, count: int = SESSIONS, length: int = LENGTH, drafter: str = "") -> list[Ask]:
    """Return the sessions of a cell. No two cells share a seed."""
    mode, params = cell
    place = CELLS.index(cell) if cell in CELLS else len(CELLS) + MODES.index(mode)
    return [
        Ask(
            mode,
            replace(PARAMS[params], seed=9000 + place * SESSIONS + index),
            GAMMAS[index % len(GAMMAS)],
            PROMPT,
            length,
            (END,) if length == LENGTH else (),
            drafter=drafter,
        )
        for index in range(count)
    ]


@asynccontextmanager
async def over_hop_2(drafters: int = 1) -> AsyncIterator[tuple[Client, list[AsyncExitStack]]]:
    """Yield a client of a verifier with drafters that run the head, and what ends each drafter."""
    target, head, _ = folders()
    async with AsyncExitStack() as whole:
        ends = [await whole.enter_async_context(AsyncExitStack()) for _ in range(drafters)]
        running = [await end.enter_async_context(running_drafter(target, kind="head", head=head)) for end in ends]
        addresses = [each.address for each in running]
        yield await whole.enter_async_context(running_verifier(target, *addresses, drafter_head=head)), ends


async def remote(work: Sequence[Ask]) -> list[Done]:
    async with over_hop_2() as (client, _):
        return await generate(client, work, AT_ONCE)


async def local(work: Sequence[Ask], **settings: Any) -> list[Done]:
    async with running_verifier(folders()[0], **settings) as client:
        return await generate(client, work, AT_ONCE)


@pytest.fixture(scope="module")
def served() -> dict[Cell, list[Done]]:
    work = [(cell, ask) for cell in CELLS for ask in asks(cell)]
    found = asyncio.run(remote([ask for _, ask in work]))
    results: dict[Cell, list[Done]] = {cell: [] for cell in CELLS}
    for (cell, _), done in zip(work, found, strict=True):
        results[cell].append(done)
    return results


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_joint_law_is_the_targets(cell: Cell, served: dict[Cell, list[Done]], note: Note) -> None:
    found = p_value([done.tokens for done in served[cell]], law_of(cell[1]))
    note(TITLE, f"{', '.join(cell):36} p = {found:.2g}")
    assert found >= P_VALUE
    rounds = [response for done in served[cell] for response in done.rounds]
    origins = Counter(origin for response in rounds for origin in response.origins)
    assert origins[common.TOKEN_ORIGIN_ACCEPTED] > SESSIONS / 20
    assert origins[common.TOKEN_ORIGIN_RECOVERED] > SESSIONS / 20
    assert {response.drafter for response in rounds} - {"", "grammar"} == {"head"}


@pytest.mark.parametrize("params", ["T=1", "penalties", "T=0"])
def test_tokens_of_a_seed_are_those_without_drafts(params: str) -> None:
    work = asks((Mode.COUPLED, params), 12, LONG, "head")
    found = asyncio.run(remote(work))
    plain = asyncio.run(
        local([replace(ask, mode=Mode.OFF if params == "T=0" else ask.mode, drafter="") for ask in work])
    )
    assert [done.tokens for done in found] == [done.tokens for done in plain]


@pytest.mark.parametrize("cell", [*((mode, "T=1") for mode in MODES), (Mode.REJECTION, "T=0")], ids=str)
def test_rounds_are_those_of_the_head_in_the_verifier(cell: Cell) -> None:
    """Each draft is equal, not only each token."""
    work = asks(cell, 12, LONG)
    there, here = asyncio.run(remote(work)), asyncio.run(local(work, head=folders()[1]))
    for one, other in zip(there, here, strict=True):
        assert [drafted(each) for each in one.rounds] == [drafted(each) for each in other.rounds]
    assert sum(len(each.draft_tokens) for done in there for each in done.rounds)


def drafted(response: pb.GenerateResponse) -> tuple[int, bytes, bytes]:
    return response.base_len, response.draft_tokens, response.tokens


def test_sessions_of_a_drafter_that_ends_draft_at_another_one() -> None:
    """No token changes, and each session has drafts before and after."""
    work = asks((Mode.COUPLED, "T=1"), 12, LONG, "head")
    plain = asyncio.run(local([replace(ask, drafter="") for ask in work]))
    for done, expected in zip(asyncio.run(_moved(work)), plain, strict=True):
        assert done.tokens == expected.tokens
        assert done.rounds[-2].drafter == "head"


async def _moved(work: Sequence[Ask]) -> list[Done]:
    """Serve all sessions, and end the first of two drafters when each has had a few rounds."""
    begun = [asyncio.Event() for _ in work]
    ended = asyncio.Event()

    async def serve(client: Client, number: int, ask: Ask) -> Done:
        rounds: list[pb.GenerateResponse] = []
        async for response in client.call(**call(ask), session=f"s{number}"):
            rounds.append(response)
            if len(rounds) == 4:
                begun[number].set()
                await ended.wait()
        return Done(rounds)

    async with over_hop_2(drafters=2) as (client, ends):
        tasks = [asyncio.create_task(serve(client, number, ask)) for number, ask in enumerate(work)]
        for each in begun:
            await each.wait()
        await ends[0].aclose()
        ended.set()
        return [await task for task in tasks]


def test_a_planted_bug_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report a q̂ over the whole vocabulary for a token that was drawn from the draft ids."""
    whole, made = SparseProbs(torch.arange(VOCAB_SIZE), torch.full((VOCAB_SIZE,), 9000)), model_drafter.propose_each
    changed = lambda *given, **named: [(token, whole) for token, _ in made(*given, **named)]  # noqa: E731
    monkeypatch.setattr(model_drafter, "propose_each", changed)
    cell = (Mode.REJECTION, "T=1")
    assert p_value([done.tokens for done in asyncio.run(remote(asks(cell)))], law_of("T=1")) < P_VALUE


def test_drafters_of_other_kinds_serve_a_verifier_that_sends_features() -> None:
    """They may be of a version that knows none."""

    async def run() -> list[Done]:
        target, head, _ = folders()
        async with (
            running_drafter(target) as running,
            running_verifier(target, running.address, drafter_head=head) as client,
        ):
            return await generate(client, asks((Mode.REJECTION, "T=0"), 4, LONG), AT_ONCE)

    for done in asyncio.run(run()):
        assert "model" in {response.drafter for response in done.rounds}
        assert min(response.accepted for response in done.rounds if len(response.draft_tokens)) > 0


def test_a_verifier_without_features_is_refused_and_serves() -> None:
    """It may be of a version that knows none."""

    async def run() -> tuple[str, list[Done]]:
        target, head, _ = folders()
        async with running_drafter(target, kind="head", head=head) as running:
            given = {"model": {"path": target, "device": "cpu"}, "drafters": (running.address,), **ANY_PORT}
            async with verifier(VerifierSettings.load(None, given)) as server, connected(server.address) as client:
                while (state := (await client.info()).drafters[0].state) == "connecting":  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
                return state, await generate(client, asks((Mode.COUPLED, "T=0"), 2, LONG), AT_ONCE)

    state, found = asyncio.run(run())
    assert state.startswith("refused: the drafter reads features float32 ")
    assert "the verifier sends none: give both services the same head and the same dtype" in state
    assert [len(done.tokens) for done in found] == [LONG, LONG]
    assert not any(response.draft_tokens for done in found for response in done.rounds)
