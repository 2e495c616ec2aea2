"""Parts of a gRPC message are counted at all depths before it is parsed."""

import pytest

from gateway.rpc.parts import MAX_PARTS, QUICK_BYTES, overfull_field
from specdec.protos.gateway.v1 import gateway_pb2 as pb

KIND = pb.GenerateRequest.DESCRIPTOR


def messages(count: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="a")] * count))


CALL = pb.ToolCall(id="call_1", name="f", arguments="{}")
ASKED = pb.ChatMessage(role="assistant", content="a", reasoning="b", tool_calls=[CALL])
RESULT = pb.ChatMessage(role="tool", content="c", tool_call_id="call_1", name="f")
CONVERSATION = pb.GenerateRequest(chat=pb.ChatPrompt(messages=[ASKED, RESULT] * (8192 // 3)))
"""As many messages and calls as a conversation may have."""


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.GenerateRequest(text="a" * 4_000_000), None),
        (pb.GenerateRequest(tokens={"token_ids": range(200_000)}), None),
        (messages(8192), None),
        (CONVERSATION, None),
        (messages(MAX_PARTS), "messages"),
        (pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage()] * 2 * MAX_PARTS)), "messages"),
        (pb.GenerateRequest(sampling=pb.SamplingOptions(bad_words=[""] * 2 * MAX_PARTS)), "bad_words"),
        (pb.GenerateRequest(sampling=pb.SamplingOptions(logit_bias=dict.fromkeys(range(30_000), 1.0))), "logit_bias"),
    ],
    ids=[
        "text",
        "tokens",
        "messages",
        "conversation",
        "fields of messages",
        "empty messages",
        "empty texts",
        "entries of a map",
    ],
)
def test_parts_are_counted_at_all_depths(message: pb.GenerateRequest, field: str | None) -> None:
    assert overfull_field(message.SerializeToString(), KIND) == field


def test_bytes_that_are_no_message_are_left_to_the_parser() -> None:
    assert overfull_field(b"\xff" * (2 * QUICK_BYTES), KIND) is None
    assert overfull_field(b"\x0b" * (2 * QUICK_BYTES), KIND) is not None
