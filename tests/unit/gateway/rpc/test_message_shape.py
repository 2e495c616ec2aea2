"""A gRPC message that takes long to walk is refused by field name before any code walks it."""

import pytest

from gateway.bounds import MAX_BRACKETS, MAX_COMMAS, MAX_NESTING
from gateway.rpc.service import _wanted
from gateway.rpc.shape import MAX_MESSAGES, check_chat, is_quick
from specdec.errors import ContextLengthExceeded, FieldInvalid, RequestError
from specdec.protos.gateway.v1 import gateway_pb2 as pb

USER = pb.ChatMessage(role="user", content="a")
CHAT = pb.ChatPrompt(messages=[USER])


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def called(arguments: str) -> pb.ChatPrompt:
    call = pb.ToolCall(id="x", name="f", arguments=arguments)
    return pb.ChatPrompt(messages=[USER, pb.ChatMessage(role="assistant", tool_calls=[call])])


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage()] * (MAX_MESSAGES + 1))), "messages"),
        (
            pb.GenerateRequest(
                chat=pb.ChatPrompt(messages=[pb.ChatMessage(tool_calls=[pb.ToolCall()] * MAX_MESSAGES)])
            ),
            "messages",
        ),
        (pb.GenerateRequest(chat=called("{" * (MAX_BRACKETS + 1))), "messages[1].tool_calls"),
        (pb.GenerateRequest(chat=called("," * (MAX_COMMAS + 1))), "messages[1].tool_calls"),
        (
            pb.GenerateRequest(
                chat=CHAT, tools=[pb.Tool(name="f"), pb.Tool(name="g", parameters="[" * MAX_BRACKETS * 2)]
            ),
            "tools[1].parameters",
        ),
        (
            pb.GenerateRequest(chat=CHAT, tools=[pb.Tool(name="f", parameters=nested(MAX_NESTING + 1))]),
            "tools[0].parameters",
        ),
        (
            pb.GenerateRequest(text="a", structured_output=pb.StructuredOutput(json_schema=nested(MAX_NESTING + 1))),
            "structured_output.json_schema",
        ),
        (
            pb.GenerateRequest(
                text="a", structured_output=pb.StructuredOutput(choice=pb.Choices(texts=["a"] * 100_000))
            ),
            "structured_output.choice",
        ),
        (pb.GenerateRequest(text="a", stop=pb.StopOptions(stop=["a"] * 100_000)), "stop"),
        (
            pb.GenerateRequest(text="a", sampling=pb.SamplingOptions(logit_bias=dict.fromkeys(range(5000), 1.0))),
            "logit_bias",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_too_much_in_a_message_is_refused_by_its_field(message: pb.GenerateRequest, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        _wanted(message)
    assert refused.value.param == param
    assert isinstance(refused.value, FieldInvalid)


def test_ids_that_no_context_has_room_for_are_refused_before_they_are_read() -> None:
    with pytest.raises(ContextLengthExceeded):
        _wanted(pb.GenerateRequest(tokens=pb.TokenPrompt(token_ids=[1] * (MAX_COMMAS + 1))))


def test_a_chat_that_is_only_tokenized_has_the_same_bound() -> None:
    with pytest.raises(FieldInvalid):
        check_chat(pb.ChatPrompt(messages=[pb.ChatMessage()] * (MAX_MESSAGES + 1)))


def test_what_fits_is_read() -> None:
    _wanted(pb.GenerateRequest(chat=called('{"a": [1, 2]}'), tools=[pb.Tool(name="f", parameters=nested(9))]))


@pytest.mark.parametrize(
    ("message", "quick"),
    [
        (pb.GenerateRequest(text="a" * 1000), True),
        (pb.GenerateRequest(text="a" * 100_000), False),
        (pb.GenerateRequest(chat=pb.ChatPrompt(messages=[USER] * 2001)), False),
        (pb.GenerateRequest(chat=called("[" * 2001)), False),
        (pb.TokenizeRequest(chat=pb.ChatPrompt(messages=[USER] * 2001)), False),
        (pb.TokenizeRequest(text="a"), True),
    ],
)
def test_small_messages_of_few_parts_are_read_at_once(message: pb.GenerateRequest, quick: bool) -> None:
    assert is_quick(message) is quick
