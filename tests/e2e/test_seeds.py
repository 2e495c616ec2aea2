"""A seed determines the tokens: alone, in a batch of 32, at any γ, and with a killed or a corrupted drafter."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from safetensors.torch import load_file, save_file

from tests.e2e.clients import client_of
from tests.e2e.system import DEMO, System, running_system

PROMPT = "import os\nimport sys\n\n\ndef main("
SEEDS = range(32)
FEW = 4
LENGTH = 40
EXTRAS: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
SAMPLING: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "presence_penalty": 0.3}


def asked(
    seed: int, gamma: int | str | None = None, max_tokens: int = LENGTH, tree: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a request with a seed and no mode, which is served in coupled mode."""
    speculation = {} if gamma is None and tree is None else {"speculation": {"gamma": gamma, "tree": tree}}
    return {
        "model": "demo",
        "prompt": PROMPT,
        "seed": seed,
        "max_tokens": max_tokens,
        "extra_body": EXTRAS | speculation,
        **SAMPLING,
    }


def alone(system: System, *requests: dict[str, Any]) -> list[list[int]]:
    """Return the tokens of each request, sent one after another."""
    client = client_of(system)
    answers: list[Any] = [client.completions.create(**request) for request in requests]
    assert all(answer.speculation["mode"] == "coupled" for answer in answers)
    return [answer.choices[0].token_ids for answer in answers]


async def together(system: System, requests: list[dict[str, Any]]) -> list[list[int]]:
    async with AsyncOpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0, timeout=120) as client:
        answers: list[Any] = await asyncio.gather(*(client.completions.create(**request) for request in requests))
    return [answer.choices[0].token_ids for answer in answers]


@pytest.fixture(scope="module")
def plain(system: System) -> list[list[int]]:
    """Return the tokens of the first seeds without drafts."""
    return alone(system, *(asked(seed, gamma=0) for seed in SEEDS[:FEW]))


async def test_in_a_batch_of_32_the_tokens_are_those_alone(system: System, plain: list[list[int]]) -> None:
    company = await together(system, [asked(seed) for seed in SEEDS])
    assert company[:FEW] == plain
    assert len({tuple(tokens) for tokens in company}) == len(SEEDS)


async def test_a_request_that_is_sent_again_gets_the_same_at_any_gamma(system: System, plain: list[list[int]]) -> None:
    gammas: tuple[int | str | None, ...] = (1, 2, 4, 16, "auto", None)
    assert alone(system, *(asked(0, gamma) for gamma in gammas)) == [plain[0]] * len(gammas)


def test_trees_of_one_drafter_and_of_two_change_no_token(system: System, plain: list[list[int]]) -> None:
    tree = {"nodes": 6, "width": 2, "depth": 3}
    requests = [
        asked(seed, tree=each) for seed in SEEDS[:2] for each in (tree, tree | {"drafters": ["model", "ngram"]})
    ]
    assert alone(system, *requests) == [plain[0], plain[0], plain[1], plain[1]]


def test_each_of_several_choices_is_what_its_own_seed_gives(system: System, plain: list[list[int]]) -> None:
    answer: Any = client_of(system).completions.create(**asked(0, gamma=4), n=FEW)
    assert [choice.index for choice in answer.choices] == list(range(FEW))
    assert [choice.token_ids for choice in answer.choices] == plain


def test_a_killed_drafter_changes_no_token(tmp_path: Path, system: System) -> None:
    request = asked(7, gamma=4, max_tokens=300)
    (expected,) = alone(system, request)
    with running_system(tmp_path) as fragile:
        ids: list[int] = []
        last: Any = None
        for chunk in client_of(fragile).completions.create(**request, stream=True):
            if not ids:
                os.kill(fragile.one("drafter")["pid"], signal.SIGKILL)
            last = chunk
            ids += last.choices[0].token_ids
    assert ids == expected
    assert last.speculation["fallbacks"]["drafter_unavailable"] > 0


async def test_a_corrupted_drafter_changes_no_token(tmp_path: Path, plain: list[list[int]]) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(DEMO / "drafter", folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for weight in weights.values():
        weight.add_(0.2 * torch.randn(weight.shape, generator=generator).to(weight.dtype))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with running_system(tmp_path, "--drafter", str(folder)) as corrupted:
        found = await together(corrupted, [asked(seed, gamma=4) for seed in SEEDS[:FEW]])
    assert found == plain
