"""Whether a prompt can fit a context, judged by its length alone, so that one that cannot is never tokenized."""

import sys
from collections.abc import Iterator

from gateway.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from specdec.errors import ContextLengthExceeded

_ID_MEMORY = 36
"""What a token id holds, in bytes: an integer, and its place in a tuple."""


def check_fits(prompt: Prompt, room: int, longest_token: int) -> None:
    """Refuse a prompt that has more than `room` tokens, however it is tokenized.

    A tokenizer that drops characters could make fewer tokens of such a text; it is refused all the same.

    Args:
        prompt: it need not fit when this accepts it.
        room: tokens of the context that are free for it.
        longest_token: bytes of the longest token of the vocabulary.

    Raises:
        ContextLengthExceeded: it cannot fit; `param` is the field that holds it.
    """
    match prompt:
        case TokenPrompt(tokens):
            check_count(len(tokens), room, "prompt")
        case TextPrompt(text):
            _check_bytes(_byte_length(text), room, longest_token, "prompt")
        case ChatPrompt(messages):
            check_count(len(messages), room, "messages", "messages")
            size = sum(_byte_length(text) for text in _texts(prompt))
            _check_bytes(size, room, longest_token, "messages")


def memory_of(prompt: Prompt) -> int:
    """The memory that the texts or token ids of a prompt hold, in bytes."""
    match prompt:
        case TokenPrompt(tokens):
            return len(tokens) * _ID_MEMORY
        case TextPrompt(text):
            return sys.getsizeof(text)
        case ChatPrompt():
            return sum(sys.getsizeof(text) for text in _texts(prompt))


def _texts(prompt: ChatPrompt) -> Iterator[str]:
    """Every text of a conversation that the chat template repeats."""
    for message in prompt.messages:
        yield message.content
        yield from (call.arguments for call in message.tool_calls)
    for tool in prompt.tools:
        yield tool.description
        yield tool.parameters


def request_memory(request: GenerationRequest) -> int:
    """The memory that the prompts and the prediction of a request hold, in bytes."""
    return sum(map(memory_of, request.prompts)) + memory_of(TextPrompt(request.prediction))


def _byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def check_count(count: int, room: int, param: str, what: str = "tokens") -> None:
    """Raise ContextLengthExceeded when `param` has more of `what` than there is room for tokens."""
    if count > room:
        raise ContextLengthExceeded(
            f"{param} has {count} {what}, and the model's context has room for {max(room, 0)} tokens", param
        )


def _check_bytes(size: int, room: int, longest_token: int, param: str) -> None:
    most = max(room, 0) * longest_token
    if size > most:
        raise ContextLengthExceeded(
            f"{param} has {size} bytes; the {max(room, 0)} tokens that the model's context has room for "
            f"are at most {most} bytes",
            param,
        )
