"""A sequence without a valid next-token distribution fails alone and by name; its batch is unaffected."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.errors import FieldInvalid, NoDistribution, SpecdecError
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.status import from_rpc_error
from tests.conformance.served_pair import running_drafter, running_verifier
from tests.integration.verifier.client import Client, output
from tests.integration.verifier.target import PROMPT
from tests.support.tiny_models import make_tiny_model

POISON = 300
"""Token that turns the logits of every context with it into NaN."""
LENGTH = 24


def poisoned(folder: Path, seed: int) -> Path:
    make_tiny_model(folder, seed=seed)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


async def refusal(client: Client, **asked: Any) -> SpecdecError | None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.rounds(**asked)
    return from_rpc_error(caught.value)


@pytest.mark.parametrize("mode", list(Mode), ids=str)
async def test_nan_logits_of_target_and_drafter_fail_one_session_and_no_other(mode: Mode, tmp_path: Path) -> None:
    target, drafter = poisoned(tmp_path / "target", 3), poisoned(tmp_path / "drafter", 3)
    sampled = SamplingParams(seed=5, banned_token_ids=(POISON,))
    asked: dict[str, Any] = {"mode": mode, "max_tokens": LENGTH, "params": sampled}
    async with running_drafter(drafter) as running, running_verifier(target, running.address) as client:
        alone = await client.rounds(**asked, gamma=3, session="alone")
        bad = [*PROMPT, POISON, 7]
        failures = [refusal(client, tokens=bad, **asked, gamma=3, session=f"bad{n}") for n in range(4)]
        good = [client.rounds(**asked, gamma=3, session=f"good{n}") for n in range(4)]
        errors, generations = await asyncio.gather(asyncio.gather(*failures), asyncio.gather(*good))
        again = await client.rounds(**asked, gamma=3, session="again")
    assert [type(error) for error in errors] == [NoDistribution] * 4
    for rounds in (*generations, again):
        assert len(output(rounds)) == LENGTH
        if mode in (Mode.OFF, Mode.COUPLED):
            assert output(rounds) == output(alone)


async def test_a_drafter_without_a_distribution_costs_speed_and_nothing_else(tmp_path: Path) -> None:
    target, drafter = make_tiny_model(tmp_path / "target", seed=3), poisoned(tmp_path / "drafter", 3)
    bad = [*PROMPT, POISON, 7]
    async with running_drafter(drafter) as running, running_verifier(target, running.address) as client:
        plain = await client.rounds(tokens=bad, mode=Mode.OFF, max_tokens=LENGTH, session="plain")
        drafted = await client.rounds(tokens=bad, gamma=3, max_tokens=LENGTH, session="drafted")
        fine = await client.rounds(gamma=3, max_tokens=LENGTH, session="fine")
    assert output(drafted) == output(plain)
    assert not any(response.draft_tokens for response in drafted)
    assert sum(response.accepted for response in fine) > 0


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(banned_token_ids=tuple(range(320))), "banned_token_ids"),
        (SamplingParams(allowed_token_ids=(5,), banned_token_ids=(5,)), "allowed_token_ids"),
        (SamplingParams(allowed_token_ids=(5,), end_token_ids=(5,), min_tokens=1), "allowed_token_ids"),
    ],
)
async def test_masks_that_leave_nothing_are_the_callers_mistake(
    params: SamplingParams, field: str, tmp_path: Path
) -> None:
    async with running_verifier(make_tiny_model(tmp_path, seed=3)) as client:
        error = await refusal(client, params=params)
        assert isinstance(error, FieldInvalid)
        assert error.param == field
        assert output(await client.rounds(params=SamplingParams(allowed_token_ids=(5,)), max_tokens=3)) == [5, 5, 5]
