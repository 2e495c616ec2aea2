"""Seeds determine tokens as far as documented: for any batch, drafter and γ, and after a retry.

In modes coupled and off the output is a function of (seed, target). In modes rejection and block it also depends on the
rounds, so it repeats if γ is fixed and no draft is late. Block mode also needs a drafter that does not draft ahead. The
random numbers of a draft are keyed by the start of its chain, and whether a chain survives a full acceptance depends on
how far ahead the drafter was.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.sampling.vocabulary import fingerprint
from tests.conformance.served_pair import Ask, Done, call, generate, pair, running_drafter, running_verifier
from tests.integration.verifier.client import output, reasons
from tests.integration.verifier.draft_scripts import beyond, corrupt_hash, malformed, outside_vocabulary, stale, wrong
from tests.integration.verifier.scripted_drafter import (
    RunningDrafter,
    Script,
    ScriptedDrafter,
    Seen,
    drafts,
    eventually,
)
from tests.support.tiny_models import make_tiny_model, make_tokenizer

pytestmark = pytest.mark.integration

VOCAB_SIZE = 320
PROMPT = (40, 41, 42, 43, 44, 45, 46)
LENGTH = 16
COMPANY = 32
FEW = 8
"""Number of generations run alone, which take longest."""
GAMMAS: tuple[int | None, ...] = (0, 1, 2, 3, 4, 5, 6, None)
"""Draft lengths. None is automatic."""
SAMPLING = (
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=20, presence_penalty=0.5, repetition_penalty=1.2),
)
HASTY = {"timeout": 0.05, "probe": 0.3}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a target, a drafter close to it, and a drafter that shares only its tokenizer."""
    folder = tmp_path_factory.mktemp("seeds")
    return {
        "target": make_tiny_model(folder / "target", seed=3),
        "good": make_tiny_model(folder / "good", seed=3, noise=0.02),
        "other": make_tiny_model(folder / "other", seed=4, layers=1),
    }


@pytest.fixture(scope="module")
def plain(folders: dict[str, Path]) -> list[tuple[int, ...]]:
    """Return the tokens of seeds 0..31 by plain decoding, one generation at a time, without a drafter."""

    async def run() -> list[Done]:
        async with running_verifier(folders["target"]) as client:
            return await generate(client, asks(Mode.OFF), at_once=1)

    outputs = [done.tokens for done in asyncio.run(run())]
    assert len(set(outputs)) == COMPANY
    return outputs


def asks(mode: Mode, gammas: Sequence[int | None] = GAMMAS, committed: Sequence[tuple[int, ...]] = ()) -> list[Ask]:
    """Return one generation for each seed."""
    return [
        Ask(
            mode,
            replace(SAMPLING[seed % len(SAMPLING)], seed=seed),
            None if mode is Mode.OFF else gammas[seed % len(gammas)],
            PROMPT,
            LENGTH,
            committed=committed[seed] if committed else (),
        )
        for seed in range(COMPANY)
    ]


def tokens(generations: Sequence[Done]) -> list[tuple[int, ...]]:
    return [done.tokens for done in generations]


def accepted(generations: Sequence[Done]) -> int:
    return sum(response.accepted for done in generations for response in done.rounds)


@pytest.mark.parametrize("drafter", ["good", "other"])
async def test_coupled_tokens_are_the_plain_ones_alone_and_in_company(
    drafter: str, folders: dict[str, Path], plain: list[tuple[int, ...]]
) -> None:
    async with pair(folders["target"], folders[drafter]) as client:
        company = await generate(client, asks(Mode.COUPLED), at_once=COMPANY)
        alone = await generate(client, asks(Mode.COUPLED, GAMMAS[1:] + GAMMAS[:1])[:FEW], at_once=1)
        off = await generate(client, asks(Mode.OFF), at_once=COMPANY)
    assert tokens(company) == tokens(off) == plain
    assert tokens(alone) == plain[:FEW]
    assert accepted(company) > (COMPANY * LENGTH / 4 if drafter == "good" else 0)


async def test_five_repeats_of_concurrent_seeded_requests_are_identical(folders: dict[str, Path]) -> None:
    """The repeats differ in which sessions share a pass and which drafts arrive in time. The tokens do not differ."""
    few = cycle(asks(Mode.COUPLED))
    many = [replace(ask, params=replace(ask.params, seed=seed)) for seed, ask in zip(range(48), few, strict=False)]
    async with pair(folders["target"], folders["good"]) as client:
        repeats = [tokens(await generate(client, many, at_once=len(many))) for _ in range(5)]
    assert repeats[1:] == repeats[:1] * 4
    assert len(set(repeats[0])) == len(many)


@pytest.mark.parametrize("drafter", ["good", "other"])
async def test_one_seed_gives_the_same_tokens_at_every_gamma(
    drafter: str, folders: dict[str, Path], plain: list[tuple[int, ...]]
) -> None:
    async with pair(folders["target"], folders[drafter]) as client:
        (ask, *_) = asks(Mode.COUPLED)
        found = await generate(client, [replace(ask, gamma=gamma) for gamma in GAMMAS], at_once=len(GAMMAS))
    assert tokens(found) == [plain[0]] * len(GAMMAS)


@pytest.mark.parametrize("mode", [Mode.COUPLED, Mode.OFF])
async def test_a_retry_goes_on_from_half_of_the_tokens(
    mode: Mode, folders: dict[str, Path], plain: list[tuple[int, ...]]
) -> None:
    half = [output[: LENGTH // 2] for output in plain]
    async with pair(folders["target"], folders["good"]) as client:
        rest = await generate(client, asks(mode, committed=half), at_once=COMPANY)
    assert [begun + ended for begun, ended in zip(half, tokens(rest), strict=True)] == plain
    assert all(done.rounds[0].base_len == len(PROMPT) + LENGTH // 2 for done in rest)


def late(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Send a draft that is no longer wanted, then one of another epoch."""
    old = Seen(seen.session_id, seen.epoch + 1, seen.tokens, seen.prompt_len)
    return [drafts(seen, [7] * gamma, base_len=seen.prompt_len - 1), drafts(old, [7] * gamma)]


@pytest.mark.parametrize(
    "script", [wrong, corrupt_hash, stale, beyond, malformed, outside_vocabulary, late], ids=lambda it: it.__name__
)
async def test_a_corrupted_stream_changes_no_coupled_token(
    script: Script, folders: dict[str, Path], plain: list[tuple[int, ...]]
) -> None:
    async with AsyncExitStack() as stack:
        running = await scripted(stack, script)
        client = await stack.enter_async_context(
            running_verifier(folders["target"], running.address, drafting=HASTY | {"overload_pause": 60})
        )
        found = await generate(client, asks(Mode.COUPLED), at_once=COMPANY)
    assert tokens(found) == plain
    assert running.servicer.handled > 0


@pytest.mark.parametrize("gamma", [1, 6])
async def test_a_drafter_killed_mid_stream_changes_no_coupled_token(gamma: int, folders: dict[str, Path]) -> None:
    ask = Ask(Mode.COUPLED, SamplingParams(seed=5), gamma, PROMPT, 200)
    async with AsyncExitStack() as drafter, AsyncExitStack() as stack:
        running = await drafter.enter_async_context(running_drafter(folders["good"]))
        client = await stack.enter_async_context(running_verifier(folders["target"], running.address))
        rounds = []
        async for response in client.call(**call(ask)):
            rounds.append(response)
            if response.accepted:
                await drafter.aclose()
        (off,) = await generate(client, [replace(ask, mode=Mode.OFF, gamma=None)], at_once=1)
    assert tuple(output(rounds)) == off.tokens
    assert "drafter_unavailable" in reasons(rounds)


async def test_a_stream_that_breaks_and_comes_back_changes_no_coupled_token(
    folders: dict[str, Path], plain: list[tuple[int, ...]]
) -> None:
    by_start = {output[:3]: output for output in plain}

    def right(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        """Send the correct next tokens once three tokens are known."""
        done = seen.tokens[seen.prompt_len :]
        following = by_start.get(tuple(done[:3]), ())[len(done) : len(done) + gamma]
        return [drafts(seen, following or [7] * gamma)]

    async with AsyncExitStack() as stack:
        running = await scripted(stack, right, dies_after=2 * COMPANY)
        client = await stack.enter_async_context(running_verifier(folders["target"], running.address))
        found = await generate(client, asks(Mode.COUPLED), at_once=COMPANY)
        await eventually(lambda: running.servicer.streams == 2)
        again = await generate(client, asks(Mode.COUPLED), at_once=COMPANY)
    assert tokens(found) == tokens(again) == plain
    assert accepted(again) > COMPANY


@pytest.mark.parametrize(("mode", "ahead"), [(Mode.REJECTION, 4), (Mode.BLOCK, 0)])
async def test_ratio_modes_repeat_at_a_fixed_gamma_with_an_undisturbed_drafter(
    mode: Mode, ahead: int, folders: dict[str, Path]
) -> None:
    gammas = (3, 1, 5, 2)
    async with pair(folders["target"], folders["good"], ahead=ahead) as client:
        alone = await generate(client, asks(mode, gammas)[:FEW], at_once=1)
        company = await generate(client, asks(mode, gammas), at_once=COMPANY)
    rounds = [response for done in (*alone, *company) for response in done.rounds]
    assert not any(response.fallback_reason for response in rounds), "no draft was late"
    assert tokens(company)[:FEW] == tokens(alone)


async def scripted(stack: AsyncExitStack, script: Script, dies_after: int | None = None) -> RunningDrafter:
    """Run a scripted drafter with the target's tokenizer."""
    vocabulary = fingerprint(make_tokenizer(VOCAB_SIZE).get_vocab())
    running = await RunningDrafter.start(ScriptedDrafter(script, vocabulary, dies_after))
    stack.push_async_callback(running.server.stop, 0)
    return running
