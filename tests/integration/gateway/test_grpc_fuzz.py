"""Random messages made from the gRPC API's descriptors each get an answer or a refusal, and no internal error."""

import random
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from tests.integration.gateway.stage import Stage

MESSAGES = 25
"""Number of messages for each RPC."""
SEED = 17
_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.UNIMPLEMENTED,
}
_TEXTS = ["", "Say it", "bytes", "user", "system", "0" * 32, f"{'0' * 32}-1", "x" * 300, "\u0000", "🙂"]
_REALS = [0.0, -1.0, 0.5, 1.0, 2.0, 1e300, float("nan"), float("inf")]
_WIDE, _LONG = [0, 1, 3, 16, 2**31 - 1, 2**32 - 1], [0, 1, -1, 2**63 - 1, -(2**63)]
_VALUES: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: _TEXTS,
    FieldDescriptor.CPPTYPE_DOUBLE: _REALS,
    FieldDescriptor.CPPTYPE_FLOAT: _REALS,
    FieldDescriptor.CPPTYPE_UINT32: _WIDE,
    FieldDescriptor.CPPTYPE_INT32: [0, 1, -1, 2**31 - 1, -(2**31)],
    FieldDescriptor.CPPTYPE_INT64: _LONG,
    FieldDescriptor.CPPTYPE_BOOL: [True, False],
    FieldDescriptor.CPPTYPE_ENUM: [0, 1, 2, 3, 99],
}


def fill(message: Message, rng: random.Random) -> None:
    """Set about a third of the fields, and of the fields of nested messages."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() > 0.35 and field.name not in ("request", "text"):
            continue
        place = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            place[rng.choice(_VALUES[key.cpp_type])] = rng.choice(_VALUES[value.cpp_type])
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            fill(place.add() if field.is_repeated else place, rng)
        elif field.is_repeated:
            place.extend(rng.choices(_VALUES[field.cpp_type], k=rng.randrange(4)))
        else:
            setattr(message, field.name, rng.choice(_VALUES[field.cpp_type]))


@pytest.mark.parametrize(
    "rpc", [rpc.full_name for service in pb.DESCRIPTOR.services_by_name.values() for rpc in service.methods]
)
async def test_every_message_is_answered_or_refused(here: Stage, channel: grpc.aio.Channel, rpc: str) -> None:
    service, name = rpc.rsplit(".", 1)
    method = pb.DESCRIPTOR.services_by_name[service.rsplit(".", 1)[1]].methods_by_name[name]
    call = (channel.unary_stream if method.server_streaming else channel.unary_unary)(f"/{service}/{name}")
    rng, outcomes = random.Random(SEED), set()
    for _ in range(MESSAGES):
        message = getattr(pb, method.input_type.name)()
        fill(message, rng)
        raw = message.SerializeToString()
        for data in (raw, raw[: rng.randrange(len(raw) + 1)] + rng.randbytes(3)):
            outcomes.add(await _outcome(call(data, timeout=20), method.server_streaming))
    assert outcomes <= _REFUSALS | {grpc.StatusCode.OK}


async def _outcome(call: Any, streams: bool) -> grpc.StatusCode:
    try:
        if streams:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
