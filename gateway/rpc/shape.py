"""Bounds of gRPC messages, like those of the HTTP API; checked before the messages are parsed."""

from collections.abc import Iterator

from gateway.bounds import MAX_BAD_WORDS, MAX_BRACKETS, MAX_COMMAS, MAX_MESSAGES
from specdec.errors import ContextLengthExceeded, FieldInvalid
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.rules.speculation import MAX_DRAFTERS
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES

_QUICK_BYTES = 64 * 1024
_QUICK_PARTS = 2000


def is_quick(message: pb.GenerateRequest | pb.TokenizeRequest) -> bool:
    """Whether parsing a message takes at most a few milliseconds, for any content."""
    if message.ByteSize() > _QUICK_BYTES:
        return False
    parts = _messages(message.chat) + len(message.chat.documents)
    return parts + sum(text.count("{") + text.count("[") for _, text in _texts(message)) <= _QUICK_PARTS


def check_shape(message: pb.GenerateRequest) -> None:
    """Raise FieldInvalid or ContextLengthExceeded for a message that has too much in it; `param` is the field."""
    check_chat(message.chat)
    for param, values, most in (
        ("bad_words", message.sampling.bad_words, MAX_BAD_WORDS),
        ("structured_output.choice", message.structured_output.choice.texts, MAX_GRAMMAR_BYTES),
        ("speculation.tree.drafters", message.speculation.tree.drafters, MAX_DRAFTERS),
    ):
        if len(values) > most:
            raise FieldInvalid(f"{param} takes at most {most}, got {len(values)}", param)
    if len(message.tokens.token_ids) > MAX_COMMAS:
        raise ContextLengthExceeded(f"tokens has over {MAX_COMMAS} ids", "tokens")
    check_texts(message)


def check_texts(message: pb.GenerateRequest | pb.TokenizeRequest) -> None:
    """Raise FieldInvalid for texts with too much JSON in them; `param` is the field."""
    brackets, commas = 0, 0
    for param, text in _texts(message):
        brackets += text.count("{") + text.count("[")
        commas += text.count(",")
        if brackets > MAX_BRACKETS:
            raise FieldInvalid(f"{param} makes the message have over {MAX_BRACKETS} opening brackets", param)
        if commas > MAX_COMMAS:
            raise FieldInvalid(f"{param} makes the message have over {MAX_COMMAS} commas", param)


def check_chat(chat: pb.ChatPrompt) -> None:
    """Raise FieldInvalid for a conversation of too many messages and calls, or of too many documents."""
    if _messages(chat) > MAX_MESSAGES:
        raise FieldInvalid(f"messages has over {MAX_MESSAGES} messages and calls", "messages")
    if len(chat.documents) > MAX_MESSAGES:
        raise FieldInvalid(f"documents takes at most {MAX_MESSAGES}, got {len(chat.documents)}", "documents")


def _messages(chat: pb.ChatPrompt) -> int:
    """Messages and calls of a conversation; counted no further than is too many."""
    messages = len(chat.messages)
    return messages if messages > MAX_MESSAGES else messages + sum(len(each.tool_calls) for each in chat.messages)


def _texts(message: pb.GenerateRequest | pb.TokenizeRequest) -> Iterator[tuple[str, str]]:
    """The texts that are read as JSON, each with its field."""
    if isinstance(message, pb.GenerateRequest):
        yield "structured_output.json_schema", message.structured_output.json_schema
    for index, tool in enumerate(message.tools):
        yield f"tools[{index}].parameters", tool.parameters
    for index, turn in enumerate(message.chat.messages):
        for call in turn.tool_calls:
            yield f"messages[{index}].tool_calls", call.arguments
