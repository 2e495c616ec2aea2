"""Values of generation_config.json reach the verifiers from every API, unless they are turned off."""

import json
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from gateway.config import TokenizerSettings
from specdec.errors import ConfigError
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.sampling.params import SamplingParams
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script

TALK: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
BODIES: dict[str, Any] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": TALK,
    "/v1/messages": TALK,
    "/v1/responses": {"input": "hi"},
}


def model(path: Path, **content: Any) -> TokenizerSettings:
    (path / "generation_config.json").write_text(json.dumps(content))
    return TokenizerSettings(path=path)


async def sampled(here: Stage, path: str, **fields: Any) -> SamplingParams:
    async with httpx2.AsyncClient() as client:
        answer = await client.post(f"{here.url}{path}", json=BODIES[path] | fields)
    assert answer.status_code == 200, answer.text
    sampling: SamplingParams = here.verifier.calls[-1].sampling
    return sampling


@pytest.mark.parametrize("path", BODIES)
async def test_every_door_has_the_defaults_of_the_folder(tmp_path: Path, path: str) -> None:
    async with stage(model=model(tmp_path, temperature=0.5, top_p=0.25)) as here:
        sampling = await sampled(here, path)
        assert (sampling.temperature, sampling.top_p) == (0.5, 0.25)
        sampling = await sampled(here, path, temperature=1)
        assert (sampling.temperature, sampling.top_p) == (1.0, 0.25)


async def test_they_hold_over_grpc_and_bound_the_length(tmp_path: Path) -> None:
    async with (
        stage(model=model(tmp_path, top_k=7, max_new_tokens=3)) as here,
        grpc.aio.insecure_channel(here.gateway.grpc) as channel,
    ):
        here.verifier.script = Script(text="x" * 20)
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        first = await stub.Generate(pb.GenerateRequest(text="hi"))
        assert (here.verifier.calls[-1].sampling.top_k, first.usage.completion_tokens) == (7, 3)
        request = pb.GenerateRequest(text="hi", sampling=pb.SamplingOptions(top_k=0))
        request.stop.max_tokens = 5
        second = await stub.Generate(request)
        assert (here.verifier.calls[-1].sampling.top_k, second.usage.completion_tokens) == (0, 5)


async def test_the_turns_of_a_session_have_them(tmp_path: Path) -> None:
    async with stage(model=model(tmp_path, do_sample=False)) as here:
        async with httpx2.AsyncClient() as client:
            session = (await client.post(f"{here.url}/v1/sessions", json={})).json()["id"]
        for _ in range(2):
            assert (await sampled(here, "/v1/chat/completions", session=session)).temperature == 0.0


async def test_none_turns_them_off(tmp_path: Path) -> None:
    async with stage(model=model(tmp_path, temperature=0.5), generation_config="none") as here:
        assert (await sampled(here, "/v1/completions")).temperature == 1.0


async def test_a_wrong_value_is_named_before_anybody_is_served(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json: temperature must be .*; or set generation_config"):
        async with stage(model=model(tmp_path, temperature=-1)):
            raise AssertionError("it serves")
