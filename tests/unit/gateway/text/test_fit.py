"""A prompt that cannot fit is refused by its length alone, and one that may fit is never refused."""

import pytest

from gateway.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from gateway.text.prompt_encoder import check_fits, memory_of
from gateway.tools.values import Message, ToolCall
from specdec.errors import ContextLengthExceeded


@pytest.mark.parametrize(
    "prompt",
    [TextPrompt("x" * 40), TextPrompt("é" * 20), TokenPrompt((1,) * 10), ChatPrompt((Message("user", "x" * 40),))],
)
def test_a_prompt_that_may_fit_is_accepted(prompt: Prompt) -> None:
    check_fits(prompt, room=10, longest_token=4)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (TextPrompt("x" * 41), "prompt"),
        (TextPrompt("é" * 21), "prompt"),
        (TokenPrompt((1,) * 11), "prompt"),
        (ChatPrompt((Message("user", "x" * 21), Message("assistant", "x" * 20))), "messages"),
        (ChatPrompt((Message("user", ""),) * 11), "messages"),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused_by_its_field(prompt: Prompt, field: str) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        check_fits(prompt, room=10, longest_token=4)
    assert refused.value.param == field


@pytest.mark.parametrize(
    "message",
    [
        Message("user", "x", name="a" * 2**20),
        Message("tool", "x", tool_call_id="a" * 2**20),
        Message("assistant", "x", reasoning="a" * 2**20),
        Message("assistant", "x", tool_calls=(ToolCall("f", "{}", "a" * 2**20),)),
        Message("assistant", "x", tool_calls=(ToolCall("f" * 2**20, "{}"),)),
    ],
)
def test_names_ids_and_thinking_are_bounded(message: Message) -> None:
    check_fits(ChatPrompt((message,)), room=2**20, longest_token=2)
    assert memory_of(ChatPrompt((message,))) >= 2**20
    with pytest.raises(ContextLengthExceeded, match="names, ids, thinking and documents") as refused:
        check_fits(ChatPrompt((message, Message("user", "x", name="b"))), room=10, longest_token=4)
    assert refused.value.param == "messages"


def test_a_context_that_is_full_has_room_for_nothing() -> None:
    with pytest.raises(ContextLengthExceeded, match="0 tokens"):
        check_fits(TextPrompt("x"), room=-3, longest_token=4)
