"""Log probabilities of a prompt over the wire are the target's own, however the prompt was computed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.errors import FieldInvalid
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import MAX_PROMPT_LOGPROBS, SamplingParams
from specdec.serving.rpc.status import from_rpc_error
from specdec.wire.logprobs import logprobs_from_pb
from tests.conformance.served_pair import running_drafter, running_verifier
from tests.integration.verifier.client import Client, output
from tests.support.tiny_models import make_tiny_model
from verifier_service.backends.batch_plan import PIECE

NOISE = 1e-4
"""Error of a float32 logarithm between batches of different shapes."""
TOP = 3
CONTEXT = 512
LONG = tuple(3 + (7 * index * index + index) % 200 for index in range(2 * PIECE + 40))
"""A prompt that takes several prefill chunks."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a drafter that is often right."""
    folder = tmp_path_factory.mktemp("prompts")
    models = [make_tiny_model(folder / "target", seed=3, context=CONTEXT)]
    models.append(make_tiny_model(folder / "drafter", seed=3, context=CONTEXT, noise=0.02))
    return models[0], models[1]


@pytest.fixture(scope="module")
def target(folders: tuple[Path, Path]) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32).eval()


@pytest.fixture
async def client(folders: tuple[Path, Path]) -> AsyncIterator[Client]:
    target, draft = folders
    async with (
        running_drafter(draft) as drafter,
        running_verifier(target, drafter.address, chunk_tokens=100) as client,
    ):
        yield client


def reported(rounds: Sequence[pb.GenerateResponse]) -> tuple[TokenLogprobs, ...]:
    """Return the prompt's log probabilities from the first round; no other round has any."""
    assert not any(each.HasField("prompt_logprobs") for each in rounds[1:])
    return logprobs_from_pb(rounds[0].prompt_logprobs)


def assert_of(found: Sequence[TokenLogprobs], target: torch.nn.Module, prompt: Sequence[int]) -> None:
    """Compare with the log-softmax of one plain forward pass."""
    with torch.no_grad():
        rows = target(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    assert len(found) == len(prompt) - 1
    for own, row, token in zip(found, rows, prompt[1:], strict=True):
        best = row.topk(TOP)
        assert own.logprob == pytest.approx(float(row[token]), abs=NOISE)
        assert [value for _, value in own.top] == pytest.approx(best.values.tolist(), abs=NOISE)
        least, most = (int((row > float(row[token]) + noise).sum()) + 1 for noise in (NOISE, -NOISE))
        assert least <= own.rank <= most


@pytest.mark.parametrize("prompt", [LONG[:1], LONG[:2], LONG[:7], LONG[: PIECE + 1], LONG], ids=len)
@pytest.mark.parametrize("gamma", [0, 4])
async def test_they_are_the_targets(
    prompt: tuple[int, ...], gamma: int, client: Client, target: torch.nn.Module
) -> None:
    rounds = await client.rounds(prompt, gamma=gamma, max_tokens=8, logprobs=1, prompt_logprobs=TOP)
    assert_of(reported(rounds), target, prompt)
    assert len(output(rounds)) == 8
    assert rounds[0].cached_tokens == 0


async def test_what_is_cached_is_computed_again(client: Client, target: torch.nn.Module) -> None:
    await client.rounds(LONG, max_tokens=2, session="before")
    again = await client.rounds(LONG, max_tokens=2, session="plain")
    assert again[0].cached_tokens > PIECE
    rounds = await client.rounds(LONG, max_tokens=2, session="asks", prompt_logprobs=TOP)
    assert_of(reported(rounds), target, LONG)
    assert output(rounds) == output(again)


async def test_several_beside_others_change_nothing(client: Client, target: torch.nn.Module) -> None:
    prompts = [LONG[index:] for index in range(3)]
    params = SamplingParams(seed=9)

    async def ask(index: int, prompt: tuple[int, ...], top: int | None) -> list[pb.GenerateResponse]:
        session = f"{index} {top}"
        return await client.rounds(
            prompt, session=session, mode=Mode.COUPLED, gamma=3, params=params, max_tokens=12, prompt_logprobs=top
        )

    asking = [ask(index, prompt, TOP) for index, prompt in enumerate(prompts)]
    beside = [ask(index, prompt, None) for index, prompt in enumerate(prompts)]
    answers = await asyncio.gather(*asking, *beside)
    for prompt, asked, mute in zip(prompts, answers[:3], answers[3:], strict=True):
        assert_of(reported(asked), target, prompt)
        assert not reported(mute)
        assert output(asked) == output(mute)


async def test_the_rest_of_a_generation_has_none(client: Client) -> None:
    whole = output(await client.rounds(LONG, max_tokens=6, session="whole"))
    rest = await client.rounds(
        (*LONG, *whole[:2]), prompt_len=len(LONG), max_tokens=6, session="rest", prompt_logprobs=TOP
    )
    assert output(rest) == whole[2:]
    assert not reported(rest)


@pytest.mark.parametrize("count", [21, MAX_PROMPT_LOGPROBS])
async def test_more_than_the_limit_is_refused(count: int, client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.rounds(LONG, prompt_logprobs=count)
    error = from_rpc_error(caught.value)
    assert isinstance(error, FieldInvalid)
    assert error.param == "prompt_logprobs"
