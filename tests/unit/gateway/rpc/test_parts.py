"""Parts of a gRPC message are counted at all depths before it is parsed."""

import pytest

from gateway.rpc.parts import MAX_PARTS, QUICK_BYTES, has_too_many_parts
from specdec.protos.gateway.v1 import gateway_pb2 as pb

KIND = pb.GenerateRequest.DESCRIPTOR


def messages(count: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="a")] * count))


@pytest.mark.parametrize(
    ("message", "many"),
    [
        (pb.GenerateRequest(text="a" * 4_000_000), False),
        (pb.GenerateRequest(tokens={"token_ids": range(200_000)}), False),
        (messages(8192), False),
        (messages(MAX_PARTS), True),
        (pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage()] * 2 * MAX_PARTS)), True),
        (pb.GenerateRequest(sampling=pb.SamplingOptions(bad_words=[""] * 2 * MAX_PARTS)), True),
    ],
    ids=["text", "tokens", "messages", "fields of messages", "empty messages", "empty texts"],
)
def test_parts_are_counted_at_all_depths(message: pb.GenerateRequest, many: bool) -> None:
    assert has_too_many_parts(message.SerializeToString(), KIND) == many


def test_bytes_that_are_no_message_are_left_to_the_parser() -> None:
    assert not has_too_many_parts(b"\xff" * (2 * QUICK_BYTES), KIND)
    assert has_too_many_parts(b"\x0b" * (2 * QUICK_BYTES), KIND)
