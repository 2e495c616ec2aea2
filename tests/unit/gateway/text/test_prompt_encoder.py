"""Short texts are tokenized on the event loop; longer ones, and every chat, on threads."""

import threading
from collections.abc import Sequence

import pytest

from gateway.request import ChatPrompt, Prompt, TextPrompt
from gateway.text.prompt_encoder import PromptEncoder
from gateway.tools.values import Message
from tests.support.gateway_fakes import ByteTokenizer


class Watched(ByteTokenizer):
    """Remembers the thread of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def encode_after(self, prompt: Prompt, history: Sequence[int], room: int = 0) -> tuple[int, ...]:
        self.threads.append(threading.current_thread())
        return super().encode_after(prompt, history, room)


@pytest.mark.parametrize(
    ("prompt", "here"),
    [
        (TextPrompt("x" * 400), True),
        (TextPrompt("x" * 600), False),
        (TextPrompt("\N{GRINNING FACE}" * 200), False),
        (ChatPrompt((Message("user", "hi"),)), False),
    ],
)
async def test_only_short_texts_are_tokenized_on_the_event_loop(prompt: Prompt, here: bool) -> None:
    tokenizer = Watched()
    await PromptEncoder(tokenizer).encode(prompt, "someone", 4096)
    assert [thread is threading.current_thread() for thread in tokenizer.threads] == [here]
