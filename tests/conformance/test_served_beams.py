"""Served beam search equals `generate(num_beams=...)` of transformers, with drafts, without, and with a lost drafter.

Models are tiny, in float32. A prompt is compared in its tokens and its score.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.beams.options import BeamOptions, EarlyStopping
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.wire.tokens import tokens_from_bytes
from tests.conformance.model_folders import root
from tests.conformance.notes import Note
from tests.conformance.served_pair import running_drafter, running_verifier
from tests.integration.verifier.client import Client
from tests.support.tiny_models import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PROMPTS = 100
FEW = 12
WIDTHS = (2, 4, 8)
LENGTH = 10
VOCAB = 320
END = 0
ENDS = {"llama": (END,), "gpt2": tuple(range(40))}
"""Ids that end a beam. With many of them, some beams end in most steps."""
AT_ONCE = 4
TITLE = f"beam search against generate(), {PROMPTS} prompts a width"


@dataclass(frozen=True)
class Found:
    """Result of one search."""

    tokens: tuple[int, ...]
    score: float
    steps: int = 0
    accepted: int = 0


def prompts(number: int) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(1, VOCAB) for _ in range(draw.choice((2, 5, 17, 40)))] for _ in range(number)]


@cache
def folders(architecture: str) -> tuple[Path, Path]:
    """Return a target and a drafter that often agree."""
    folder = root() / f"beams-{architecture}"
    target = make_tiny_model(folder / "target", architecture, seed=3)
    return target, make_tiny_model(folder / "drafter", architecture, seed=3, noise=0.005)


@cache
def expected(architecture: str, options: BeamOptions, number: int) -> list[Found]:
    """Return what transformers finds."""
    model = AutoModelForCausalLM.from_pretrained(folders(architecture)[0], dtype=torch.float32).eval()
    stopping = {"true": True, "false": False, "never": "never"}[options.early_stopping]
    found = []
    for prompt in prompts(number):
        made = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            num_beams=options.width, do_sample=False, max_new_tokens=LENGTH, length_penalty=options.length_penalty,
            early_stopping=stopping, eos_token_id=list(ENDS[architecture]), pad_token_id=END, output_scores=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        found.append(Found(tuple(made.sequences[0, len(prompt) :].tolist()), float(made.sequences_scores[0])))
    return found


async def searched(
    client: Client,
    options: BeamOptions,
    number: int,
    mode: Mode = Mode.REJECTION,
    gamma: int | None = None,
    ends: Sequence[int] = (END,),
) -> list[Found]:
    """Search for every prompt, a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(index: int, prompt: Sequence[int]) -> Found:
        async with gate:
            (done,) = await client.rounds(
                prompt, session=f"s{index}", max_tokens=LENGTH, stop=ends, mode=mode, gamma=gamma, beams=options
            )
        return _found(done)

    return await asyncio.gather(*(one(*each) for each in enumerate(prompts(number))))


def _found(done: pb.GenerateResponse) -> Found:
    report = done.beams
    return Found(tuple(tokens_from_bytes(done.tokens)), report.score, report.steps, report.accepted)


def check(found: Sequence[Found], wanted: Sequence[Found]) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    assert [each.score for each in found] == pytest.approx([each.score for each in wanted], abs=1e-4)


async def serve(architecture: str, options: BeamOptions, number: int) -> dict[str, list[Found]]:
    """Return the results without drafts, with them, and while the drafter ends."""
    target, draft = folders(architecture)
    async with AsyncExitStack() as stack:
        drafter = AsyncExitStack()
        running = await drafter.enter_async_context(running_drafter(draft))
        stack.push_async_callback(drafter.aclose)
        client = await stack.enter_async_context(running_verifier(target, running.address))
        ends = ENDS[architecture]
        plain = await searched(client, options, number, Mode.OFF, ends=ends)
        drafted = await searched(client, options, number, gamma=3, ends=ends)
        lost = asyncio.create_task(searched(client, options, number, ends=ends))
        await asyncio.sleep(0.05)
        await drafter.aclose()
        return {"plain": plain, "drafted": drafted, "lost": await lost}


@pytest.mark.parametrize("width", WIDTHS)
def test_it_equals_generate_with_and_without_drafts(width: int, note: Note) -> None:
    options = BeamOptions(width)
    served = asyncio.run(serve("llama", options, PROMPTS))
    for found in served.values():
        check(found, expected("llama", options, PROMPTS))
    assert not any(each.accepted for each in served["plain"])
    steps, accepted = (sum(getattr(each, name) for each in served["drafted"]) for name in ("steps", "accepted"))
    note(TITLE, f"width {width}: {accepted} of {steps} steps accepted, 0 differences")
    assert accepted > steps / 10


@pytest.mark.parametrize("stopping", EarlyStopping)
def test_another_architecture_and_other_options_too(stopping: EarlyStopping) -> None:
    options = BeamOptions(4, 0.5, stopping)
    for found in asyncio.run(serve("gpt2", options, FEW)).values():
        check(found, expected("gpt2", options, FEW))


def test_a_search_shares_the_engine_with_other_generations() -> None:
    async def run() -> tuple[list[Found], list[pb.GenerateResponse]]:
        target, draft = folders("llama")
        async with running_drafter(draft) as drafter, running_verifier(target, drafter.address) as client:
            long = asyncio.create_task(client.rounds(prompts(1)[0], session="long", max_tokens=150, mode=Mode.OFF))
            found = await searched(client, BeamOptions(2), FEW, gamma=2)
            return found, await long

    found, long = asyncio.run(run())
    check(found, expected("llama", BeamOptions(2), PROMPTS)[:FEW])
    assert sum(len(each.tokens) // 4 for each in long) == 150


def test_memory_of_beams_is_waited_for_and_freed() -> None:
    async def run() -> list[Found]:
        target, _ = folders("llama")
        async with running_verifier(target, kv_bytes=2**18) as client:
            return await searched(client, BeamOptions(4), FEW)

    check(asyncio.run(run()), [replace(each) for each in expected("llama", BeamOptions(4), PROMPTS)[:FEW]])
