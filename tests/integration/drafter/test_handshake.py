"""First frames of a stream: accepted handshakes, and the errors sent for refused ones."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from specdec.engine import NativeEngine
from specdec.engine.heads.checkpoint import features_name
from specdec.errors import SpecdecError
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.serving.rpc.status import from_rpc_error
from tests.integration.drafter.served_drafter import Serve, Service
from tests.integration.drafter.verifier_by_hand import PATIENCE, Verifier, opening
from tests.support.tiny_heads import make_tiny_head

pytestmark = pytest.mark.integration


async def _refusal(verifier: Verifier) -> tuple[grpc.StatusCode, SpecdecError]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await verifier.read()
    error = from_rpc_error(refused.value)
    assert error is not None
    return refused.value.code(), error


async def test_a_verifier_with_the_same_tokenizer_is_told_of_the_drafter(
    service: Service, engine: NativeEngine
) -> None:
    async with service.stream() as verifier:
        ack = await verifier.hello()
    assert (ack.model, ack.tokenizer_hash) == ("tiny", engine.tokenizer_hash)
    assert ack.step_seconds > 0
    assert ack.kind == "model"


@pytest.mark.parametrize("kind", ["ngram", "prompt_lookup", "suffix", "hybrid", "random"])
async def test_a_verifier_is_told_what_drafts(serve: Serve, kind: str) -> None:
    async with serve(kind=kind) as service, service.stream() as verifier:
        assert (await verifier.hello()).kind == kind


async def test_a_drafter_of_features_is_refused_to_verifiers_that_send_none(
    serve: Serve, engine: NativeEngine, tmp_path: Path
) -> None:
    head = make_tiny_head(tmp_path)
    async with serve(kind="head", head=head) as service:
        features = features_name(head, "float32")
        for other in ("", "float32 abc", features.replace("float32", "bfloat16")):
            async with service.stream() as verifier:
                hello = pb.Hello(protocol=1, tokenizer_hash=engine.tokenizer_hash, features=other)
                await verifier.send(pb.DraftRequest(hello=hello))
                code, error = await _refusal(verifier)
            assert (code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "DRAFTER_MISMATCH")
            assert f"the verifier sends {other or 'none'}: give both services the same head" in error.message
        async with service.stream() as verifier:
            hello = pb.Hello(protocol=1, tokenizer_hash=engine.tokenizer_hash, features=features)
            await verifier.send(pb.DraftRequest(hello=hello))
            ack = (await verifier.read()).hello_ack
            assert (ack.kind, ack.features, ack.outcomes) == ("head", features, 0)
            await verifier.open(opening())
            await verifier.until(lambda: any(frame.ends for frame in verifier.frames))
        assert await service.metric("specdec_drafter_missing_features_total") == 1


async def test_another_tokenizer_is_refused_with_both_fingerprints(service: Service, engine: NativeEngine) -> None:
    async with service.stream() as verifier:
        await verifier.send(pb.DraftRequest(hello=pb.Hello(protocol=1, tokenizer_hash="beef")))
        code, error = await _refusal(verifier)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert error.reason == "TOKENIZER_MISMATCH"
    assert "beef" in error.message
    assert engine.tokenizer_hash in error.message
    assert await service.metric("specdec_drafter_refused_streams_total") == 1


async def test_another_protocol_is_refused(service: Service, engine: NativeEngine) -> None:
    async with service.stream() as verifier:
        hello = pb.Hello(protocol=99, tokenizer_hash=engine.tokenizer_hash)
        await verifier.send(pb.DraftRequest(hello=hello))
        code, error = await _refusal(verifier)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert error.reason == "PROTOCOL_MISMATCH"
    assert "99" in error.message


async def test_anything_before_the_hello_is_refused(service: Service) -> None:
    async with service.stream() as verifier:
        await verifier.open(opening())
        code, error = await _refusal(verifier)
    assert (code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_REQUIRED")


async def test_a_second_hello_is_refused(service: Service, engine: NativeEngine) -> None:
    async with service.verifier() as verifier:
        await verifier.send(pb.DraftRequest(hello=pb.Hello(protocol=1, tokenizer_hash=engine.tokenizer_hash)))
        code, error = await _refusal(verifier)
    assert (code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")


async def test_a_verifier_that_has_nothing_to_say_ends_the_stream(service: Service) -> None:
    async with service.stream() as verifier:
        await verifier.call.done_writing()
        async with asyncio.timeout(PATIENCE):
            assert await verifier.call.read() is grpc.aio.EOF


async def test_health_says_serving_once_the_model_is_loaded(service: Service) -> None:
    assert await service.healthy()


async def test_a_drafter_that_ends_tells_its_verifiers_to_go_elsewhere(serve: Serve) -> None:
    async with serve() as service:
        stream = service.verifier()
        verifier = await stream.__aenter__()
    code, error = await _refusal(verifier)
    await stream.__aexit__(None, None, None)
    assert (code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
