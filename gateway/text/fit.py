"""Refuses prompts that cannot fit the context by their length alone, before tokenization."""

import sys
from collections.abc import Iterator

from gateway.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from specdec.errors import ContextLengthExceeded

_ID_MEMORY = 36
"""Memory of a token id in bytes: an integer and its slot in a tuple."""


def check_fits(prompt: Prompt, room: int, longest_token: int) -> None:
    """Refuse a prompt that must exceed `room` tokens; an accepted prompt may still be too long.

    A text is refused even if a tokenizer that drops characters would produce fewer tokens.

    Args:
        prompt: prompt to check.
        room: free tokens in the context.
        longest_token: length in bytes of the vocabulary's longest token.

    Raises:
        ContextLengthExceeded: the prompt cannot fit; `param` is its field.
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
    """Return the memory of a prompt's texts or token ids, in bytes."""
    match prompt:
        case TokenPrompt(tokens):
            return len(tokens) * _ID_MEMORY
        case TextPrompt(text):
            return sys.getsizeof(text)
        case ChatPrompt():
            return sum(sys.getsizeof(text) for text in _texts(prompt))


def _texts(prompt: ChatPrompt) -> Iterator[str]:
    """Yield every text of a conversation that the chat template includes."""
    for message in prompt.messages:
        yield message.content
        yield from (call.arguments for call in message.tool_calls)
    for tool in prompt.tools:
        yield tool.description
        yield tool.parameters


def request_memory(request: GenerationRequest) -> int:
    """Return the memory of a request's prompts and prediction, in bytes."""
    return sum(map(memory_of, request.prompts)) + memory_of(TextPrompt(request.prediction))


def _byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def check_count(count: int, room: int, param: str, what: str = "tokens") -> None:
    """Raise ContextLengthExceeded if `count` exceeds `room`; `what` names the counted items."""
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
