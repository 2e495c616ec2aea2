"""Both APIs have one size limit: a prompt over it is refused by both, and neither tokenizes it."""

from collections.abc import AsyncIterator

import grpc
import httpx2
import pytest

from gateway.config import GatewaySettings
from specdec.errors import ContextLengthExceeded, MessageTooLarge, SpecdecError
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.serving.rpc.status import from_rpc_error
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import ByteTokenizer

LIMIT = GatewaySettings.model_fields["max_body_bytes"].default
HEAD = 1024
"""Upper bound of the bytes around the prompt in a message of either API."""


@pytest.fixture
async def roomy() -> AsyncIterator[Stage]:
    async with stage(max_body_bytes=LIMIT) as made:
        yield made


async def over_http(here: Stage, prompt: str) -> tuple[int, str, str]:
    """Return status, code and message of the answer."""
    async with httpx2.AsyncClient(base_url=here.url, timeout=60) as client:
        answer = await client.post("/v1/completions", json={"prompt": prompt})
    return answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["message"]


async def over_grpc(here: Stage, prompt: str) -> SpecdecError | None:
    async with grpc.aio.insecure_channel(here.gateway.grpc, options=(("grpc.max_send_message_length", -1),)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pb_grpc.GenerationServiceStub(channel).Generate(pb.GenerateRequest(text=prompt))
    return from_rpc_error(refused.value)


async def test_five_megabytes_are_too_large_for_both_apis(roomy: Stage) -> None:
    prompt = "x" * 5_000_000
    status, code, message = await over_http(roomy, prompt)
    assert (status, code) == (413, "message_too_large")
    error = await over_grpc(roomy, prompt)
    assert isinstance(error, MessageTooLarge)
    assert str(LIMIT) in message
    assert str(LIMIT) in error.message


async def test_below_the_limit_both_apis_check_a_prompt_without_tokenizing_it(
    roomy: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByteTokenizer, "encode", None)
    prompt = "x" * (LIMIT - HEAD)
    status, code, _ = await over_http(roomy, prompt)
    assert (status, code) == (400, "context_length_exceeded")
    assert isinstance(await over_grpc(roomy, prompt), ContextLengthExceeded)
    assert not roomy.verifier.calls
