"""Served beam search equals `generate(num_beams=...)` of transformers, with drafts, without, and after a kill.

Models are tiny, or the demo pair, in float32. A prompt is compared in its tokens and its score. The drafter is a
process that is killed as soon as a search has accepted a step of it.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec.beams.options import BeamOptions, EarlyStopping
from specdec.cli.local.ports import free
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
ENDS = {"llama": (END,), "gpt2": tuple(range(40)), "demo": (END,)}
"""Ids that end a beam. With many of them, some beams end in most steps."""
DEMO = Path("models/demo")
TEXTS = (
    "import os\nimport sys\n\n\ndef main(",
    "class Stack:\n    def push(self, item):\n",
    "for line in open(",
    "x = [",
)
HOST = "127.0.0.1"
AT_ONCE = 4
GAMMA = 3
TITLE = f"beam search against generate(), {PROMPTS} prompts a width"


@dataclass(frozen=True)
class Found:
    """Result of one search."""

    tokens: tuple[int, ...]
    score: float
    steps: int = 0
    accepted: int = 0


def prompts(architecture: str, number: int) -> list[list[int]]:
    if architecture == "demo":
        tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
        return [tokenizer(text).input_ids for text in TEXTS[:number]]
    draw = random.Random(7)
    return [[draw.randrange(1, VOCAB) for _ in range(draw.choice((2, 5, 17, 40)))] for _ in range(number)]


@cache
def folders(architecture: str) -> tuple[Path, Path]:
    """Return a target and a drafter that often agree."""
    if architecture == "demo":
        return DEMO / "target", DEMO / "drafter"
    folder = root() / f"beams-{architecture}"
    target = make_tiny_model(folder / "target", architecture, seed=3)
    return target, make_tiny_model(folder / "drafter", architecture, seed=3, noise=0.005)


@cache
def expected(architecture: str, options: BeamOptions, number: int) -> list[Found]:
    """Return what transformers finds."""
    model = AutoModelForCausalLM.from_pretrained(folders(architecture)[0], dtype=torch.float32).eval()
    stopping = {"true": True, "false": False, "never": "never"}[options.early_stopping]
    found: dict[int, Found] = {}
    asked = prompts(architecture, number)
    for length in sorted({len(prompt) for prompt in asked}):  # those of one length together, without padding
        numbers = [index for index, prompt in enumerate(asked) if len(prompt) == length]
        made = model.generate(
            torch.tensor([asked[index] for index in numbers]),
            attention_mask=torch.ones(len(numbers), length, dtype=torch.int64), num_beams=options.width,
            do_sample=False, max_new_tokens=LENGTH, length_penalty=options.length_penalty, early_stopping=stopping,
            eos_token_id=list(ENDS[architecture]), pad_token_id=END, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        outputs = made.sequences[:, length:].tolist()
        scores = made.sequences_scores.tolist()
        found |= {
            index: Found(_until_end(output, ENDS[architecture]), score)
            for index, output, score in zip(numbers, outputs, scores, strict=True)
        }
    return [found[index] for index in range(number)]


def _until_end(output: Sequence[int], ends: Sequence[int]) -> tuple[int, ...]:
    """Return an output up to its first end id, which is kept. After it, transformers pads the rows of a batch."""
    end = next((index for index, token in enumerate(output) if token in ends), len(output))
    return tuple(output[: end + 1])


async def searched(
    client: Client,
    architecture: str,
    options: BeamOptions,
    number: int,
    mode: Mode = Mode.REJECTION,
    gamma: int | None = None,
    seen: Callable[[Found], None] = lambda found: None,
) -> list[Found]:
    """Search for every prompt, a few at a time; `seen` is called with each result as it comes."""
    gate, ends = asyncio.Semaphore(AT_ONCE), ENDS[architecture]

    async def one(index: int, prompt: Sequence[int]) -> Found:
        async with gate:
            (done,) = await client.rounds(
                prompt, session=f"s{index}", max_tokens=LENGTH, stop=ends, mode=mode, gamma=gamma, beams=options
            )
        seen(_found(done))
        return _found(done)

    return await asyncio.gather(*(one(*each) for each in enumerate(prompts(architecture, number))))


def _found(done: pb.GenerateResponse) -> Found:
    report = done.beams
    return Found(tuple(tokens_from_bytes(done.tokens)), report.score, report.steps, report.accepted)


def check(found: Sequence[Found], wanted: Sequence[Found]) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    assert [each.score for each in found] == pytest.approx([each.score for each in wanted], abs=1e-4)


@asynccontextmanager
async def drafter_process(folder: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run a drafter as a process; yield its address and the process, which may be killed."""
    address = f"{HOST}:{free(HOST)}"
    settings = {"MODEL__PATH": str(folder), "MODEL__DEVICE": "cpu", "ADDRESS": address, "LOG__LEVEL": "error"}
    environment = os.environ | {f"SPECDEC_DRAFTER_{name}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "drafter_service", env=environment | {"OMP_NUM_THREADS": "1"}
    )
    try:
        while not await _listens(address):
            assert process.returncode is None
            await asyncio.sleep(0.1)
        yield address, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _listens(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address.split(":"))
    except OSError:
        return False
    writer.close()
    return True


async def serve(architecture: str, options: BeamOptions, number: int) -> dict[str, list[Found]]:
    """Return the results without drafts, with them, and with a drafter that is killed once a step is accepted."""
    target, draft = folders(architecture)
    async with drafter_process(draft) as (address, process), running_verifier(target, address) as client:
        plain = await searched(client, architecture, options, number, Mode.OFF)
        drafted = await searched(client, architecture, options, number, gamma=GAMMA)

        kills = iter([process.kill])

        def kill(found: Found) -> None:
            if found.accepted and (once := next(kills, None)):  # a second kill would take the status that wait() is for
                once()

        killed = await searched(client, architecture, options, number, gamma=GAMMA, seen=kill)
        assert await process.wait() == -signal.SIGKILL
        return {"plain": plain, "drafted": drafted, "killed": killed}


def accepted(found: Sequence[Found]) -> int:
    """Return the number of accepted steps."""
    return sum(each.accepted for each in found)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_equals_generate_with_and_without_drafts(width: int, note: Note) -> None:
    options = BeamOptions(width)
    served = asyncio.run(serve("llama", options, PROMPTS))
    for found in served.values():
        check(found, expected("llama", options, PROMPTS))
    steps, drafted = sum(each.steps for each in served["drafted"]), accepted(served["drafted"])
    note(TITLE, f"width {width}: {drafted} of {steps} steps accepted, 0 differences")
    assert drafted > steps / 10
    assert accepted(served["plain"]) == 0
    assert 0 < accepted(served["killed"]) < drafted / 2


def test_the_demo_pair_finds_what_generate_finds() -> None:
    options = BeamOptions(4)
    served = asyncio.run(serve("demo", options, len(TEXTS)))
    for found in served.values():
        check(found, expected("demo", options, len(TEXTS)))
    assert accepted(served["drafted"]) > 0


@pytest.mark.parametrize("stopping", EarlyStopping)
def test_another_architecture_and_other_options_too(stopping: EarlyStopping) -> None:
    options = BeamOptions(4, 0.5, stopping)
    for found in asyncio.run(serve("gpt2", options, FEW)).values():
        check(found, expected("gpt2", options, FEW))


def test_a_search_shares_the_engine_with_other_generations() -> None:
    async def run() -> tuple[list[Found], list[pb.GenerateResponse]]:
        target, draft = folders("llama")
        async with running_drafter(draft) as drafter, running_verifier(target, drafter.address) as client:
            (prompt,) = prompts("llama", 1)
            long = asyncio.create_task(client.rounds(prompt, session="long", max_tokens=150, mode=Mode.OFF))
            found = await searched(client, "llama", BeamOptions(2), FEW, gamma=2)
            return found, await long

    found, long = asyncio.run(run())
    check(found, expected("llama", BeamOptions(2), PROMPTS)[:FEW])
    assert sum(len(each.tokens) // 4 for each in long) == 150


def test_memory_of_beams_is_waited_for_and_freed() -> None:
    async def run() -> list[Found]:
        target, _ = folders("llama")
        async with running_verifier(target, kv_bytes=2**18) as client:
            return await searched(client, "llama", BeamOptions(4), FEW)

    check(asyncio.run(run()), [replace(each) for each in expected("llama", BeamOptions(4), PROMPTS)[:FEW]])
