"""Log probabilities over the wire are the target's own, for every mode, parameter and origin of the token."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.errors import FieldInvalid
from specdec.protos.common.v1 import common_pb2 as common
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.status import from_rpc_error
from specdec.wire.logprobs import logprobs_from_pb
from tests.conformance.served_pair import pair
from tests.integration.verifier.client import Client, output
from tests.integration.verifier.target import PROMPT
from tests.support.tiny_models import make_tiny_model

LENGTH = 24
NOISE = 1e-4
"""Error of a float32 logarithm between batches of different shapes."""
TOP = 4
KINDS = {common.TOKEN_ORIGIN_ACCEPTED, common.TOKEN_ORIGIN_RECOVERED, common.TOKEN_ORIGIN_BONUS}
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, seed=4),
    "hot": SamplingParams(temperature=1.3, seed=4),
    "everything": SamplingParams(
        temperature=0.7,
        top_p=0.95,
        top_k=200,
        seed=4,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias={9: 5.0},
        banned_token_ids=(40, 41),
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a drafter that is often right."""
    folder = tmp_path_factory.mktemp("logprobs")
    return make_tiny_model(folder / "target", seed=3), make_tiny_model(folder / "drafter", seed=3, noise=0.02)


@pytest.fixture(scope="module")
def target(folders: tuple[Path, Path]) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32).eval()


def reported(rounds: Sequence[pb.GenerateResponse]) -> list[TokenLogprobs]:
    return [each for response in rounds for each in logprobs_from_pb(response.logprobs)]


def reference(target: torch.nn.Module, tokens: Sequence[int]) -> Iterator[TokenLogprobs]:
    """Return the log-softmax of plain forward passes over the whole sequence."""
    with torch.no_grad():
        logits = target(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    for row, token in zip(logits.log_softmax(-1), tokens, strict=True):
        best = row.topk(TOP)
        pairs = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        yield TokenLogprobs(float(row[token]), pairs)


def assert_close(found: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=NOISE)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=NOISE)


async def rounds_of(client: Client, mode: Mode, params: SamplingParams, gamma: int) -> list[pb.GenerateResponse]:
    name = f"{mode}{gamma}{params.temperature}"
    return await client.rounds(mode=mode, params=params, gamma=gamma, max_tokens=LENGTH, logprobs=TOP, session=name)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
async def test_they_are_the_targets_in_every_mode_and_of_every_origin(
    params: SamplingParams, folders: tuple[Path, Path], target: torch.nn.Module
) -> None:
    origins = set()
    async with pair(*folders) as client:
        for mode in Mode:
            for gamma in (0, 4):
                rounds = await rounds_of(client, mode, params, gamma)
                assert_close(reported(rounds), list(reference(target, output(rounds))))
                origins |= {origin for response in rounds for origin in response.origins}
    assert origins == KINDS | {common.TOKEN_ORIGIN_PLAIN}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
async def test_speculation_changes_nothing_in_them(params: SamplingParams, folders: tuple[Path, Path]) -> None:
    async with pair(*folders) as client:
        plain = await rounds_of(client, Mode.OFF, params, 0)
        drafted = await rounds_of(client, Mode.COUPLED, params, 5)
    assert output(drafted) == output(plain)
    assert sum(response.accepted for response in drafted) > 0
    assert_close(reported(drafted), reported(plain))


async def test_they_are_cut_with_the_tokens(folders: tuple[Path, Path]) -> None:
    async with pair(*folders) as client:
        rounds = await rounds_of(client, Mode.REJECTION, PARAMS["greedy"], 4)
        text = output(rounds)
        end = next(token for token in text[4:] if token not in text[:4])
        cut = await client.rounds(gamma=4, stop=[end], logprobs=0, session="cut")
    assert output(cut) == text[: text.index(end) + 1]
    assert [each.logprob for each in reported(cut)] == pytest.approx(
        [each.logprob for each in reported(rounds)[: len(output(cut))]], abs=NOISE
    )


async def test_unless_asked_for_there_are_none_and_beside_one_who_asks(folders: tuple[Path, Path]) -> None:
    async with pair(*folders) as client:
        asked = client.call(gamma=2, max_tokens=LENGTH, logprobs=1, session="asks")
        mute = await client.rounds(gamma=2, max_tokens=LENGTH, session="does not")
        rounds = [response async for response in asked]
    assert not any(response.HasField("logprobs") for response in mute)
    assert len(reported(rounds)) == LENGTH
    assert output(rounds) == output(mute)


async def test_more_than_the_limit_is_refused(folders: tuple[Path, Path]) -> None:
    async with pair(*folders) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.rounds(logprobs=21)
    error = from_rpc_error(caught.value)
    assert isinstance(error, FieldInvalid)
    assert error.param == "logprobs"
