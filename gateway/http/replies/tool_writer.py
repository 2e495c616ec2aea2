"""Writes chat answers with thinking and tool calls parsed from the model's text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gateway.http.replies.logprobs import chat_logprobs
from gateway.http.replies.objects import (
    AssistantMessage,
    CalledTool,
    ChatChoice,
    ChatCompletion,
    CustomCall,
    FunctionCall,
)
from gateway.http.replies.writers import SCORED, AnswerFormat, ChatWriter
from gateway.text.output import OutputToken
from gateway.text.tokenizer import ModelTokenizer
from gateway.tools.message_reader import ReadMessage
from gateway.tools.reading import Reading
from gateway.tools.values import CallDelta, MessageDelta, ToolCall
from gateway.turns.events import Event, Finished, Output, OutputRound, Started


class ToolChatWriter(ChatWriter):
    """Writes answers of /v1/chat/completions for models that think or requests with tools."""

    def __init__(self, started: Started, answer_format: AnswerFormat, tokenizer: ModelTokenizer) -> None:
        super().__init__(started, answer_format, tokenizer)
        self._waiting: list[list[OutputToken]] = [[] for _ in range(self.choices)]
        """Tokens of each choice that are not in a chunk yet, because their text may belong to a call."""
        self._hides = not Reading.parse(started.header.reading).shown
        """Whether the answer has no thinking, and so no token ids, log probabilities and rounds."""

    def whole(self, outputs: Sequence[Output]) -> ChatCompletion:
        return super().whole([replace(each, tokens=(), rounds=()) for each in outputs] if self._hides else outputs)

    def chunks(self, event: Event) -> Iterator[bytes]:
        if isinstance(event, OutputRound):
            event = event._replace(tokens=(), report=None) if self._hides else event
            self.noted(event)
            self._waiting[event.choice] += event.tokens
        if isinstance(event, OutputRound | Finished) and event.message:
            yield from self._long_wait(event.choice)
            yield self._chunk(self._message_part(event.choice, event.message))
        if isinstance(event, Finished):
            yield from super().chunks(event)

    def _long_wait(self, choice: int) -> Iterator[bytes]:
        """Yield chunks without text for all but the last waiting tokens, if there are many with log probabilities."""
        waiting = self._waiting[choice]
        while len(waiting) > SCORED and waiting[0].logprobs is not None:
            yield self._chunk(self._delta(choice, waiting[:SCORED], {}))
            del waiting[:SCORED]

    def _message_part(self, choice: int, message: MessageDelta) -> dict[str, Any]:
        content = {"content": message.content} if message.content else {}
        calls = {"tool_calls": [_call_part(call) for call in message.calls]} if message.calls else {}
        return self._delta(choice, self._taken(choice), content | _thought(message.reasoning) | calls)

    def _part(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> dict[str, Any]:
        return self._delta(choice, self._taken(choice), {}, finished)

    def _taken(self, choice: int) -> list[OutputToken]:
        """Remove and return the waiting tokens of a choice."""
        tokens, self._waiting[choice] = self._waiting[choice], []
        return tokens

    def _choice(self, index: int, tokens: Sequence[OutputToken], finished: Finished | None) -> dict[str, Any]:
        choice = super()._choice(index, tokens, finished)
        if finished and finished.called and choice["finish_reason"] == "stop":
            choice["finish_reason"] = "tool_calls"
        if self._hides:
            choice.pop("token_ids", None)
        return choice

    def _message_choice(self, index: int, output: Output) -> ChatChoice:
        read = output.message or ReadMessage("", ())
        calls: dict[str, Any] = {"tool_calls": [_call(call) for call in read.calls]} if read.calls else {}
        content = read.content if read.content or not read.calls else None
        message = AssistantMessage(role="assistant", content=content, refusal=None, **_thought(read.reasoning), **calls)
        logprobs = chat_logprobs(output.tokens, self._token_bytes)
        return ChatChoice(**self._choice(index, output.tokens, output.finished), message=message, logprobs=logprobs)


def _thought(text: str) -> dict[str, Any]:
    """Return the thinking under both field names that clients use."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _call(call: ToolCall) -> CalledTool:
    if call.custom:
        return CalledTool(id=call.id, type="custom", custom=CustomCall(name=call.name, input=call.arguments))
    return CalledTool(id=call.id, type="function", function=FunctionCall(name=call.name, arguments=call.arguments))


def _call_part(call: CallDelta) -> dict[str, Any]:
    """Return a part of a call: the first has id and name, the others only arguments, or the input."""
    kind, more = ("custom", "input") if call.custom else ("function", "arguments")
    if not call.name:
        return {"index": call.index, kind: {more: call.arguments}}
    return {"index": call.index, "id": call.id, "type": kind, kind: {"name": call.name, more: call.arguments}}
