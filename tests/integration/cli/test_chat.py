"""`specdec chat` with a real gateway: the session remembers earlier turns and can be resumed."""

import asyncio
import io
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from specdec.cli.commands.chat import chat
from specdec.client.connection import GatewayConnection
from specdec.client.events import PromptRequest
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script


class Typed(Console):
    """A console on which the user types these lines and then ends the input."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(file=io.StringIO(), record=True, width=100)
        self._typed = list(lines)

    def input(self, *args: Any, **options: Any) -> str:
        if not self._typed:
            raise EOFError
        return self._typed.pop(0)


async def told(here: Stage, lines: Sequence[str], **request: Any) -> str:
    console = Typed(lines)
    asked = PromptRequest("", max_tokens=50, **request)
    await asyncio.to_thread(chat, console, GatewayConnection(here.gateway.grpc), asked, False)
    return console.export_text()


async def test_turns_are_remembered_and_a_session_can_be_come_back_to() -> None:
    async with stage() as here:
        text = await told(here, ["Hello.", "", "More."])
        (session,) = re.findall(r"session ([0-9a-f]{32}):", text)
        await told(here, ["Again."], session=session)
        prompts = [bytes(token for token in call.tokens if token < 256).decode() for call in here.verifier.calls]
    assert text.count("tok/s") == 2
    answer = Script().text
    assert prompts[0] == "user: Hello.\n"
    assert prompts[1] == f"user: Hello.\n{answer}user: More.\n"
    assert prompts[2] == f"user: Hello.\n{answer}user: More.\n{answer}user: Again.\n"


async def test_a_line_that_is_refused_does_not_end_the_conversation() -> None:
    async with stage() as here:
        text = await told(here, ["x" * 400, "Hello."])
    assert "refused: " in text
    assert text.count("tok/s") == 1
