"""Writes chats in which the model may call tools: its text is read for calls as it comes."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.http.logprobs import chat_logprobs
from gateway.http.replies import Answer, AssistantMessage, CalledTool, ChatChoice, Delta, DeltaChoice, FunctionCall
from gateway.http.writers import AnswerFormat, ChatWriter, CompletionWriter, Writer, text_of
from gateway.text.output import OutputToken
from gateway.text.tokenizer import ModelTokenizer
from gateway.tools.formats import FORMATS
from gateway.tools.parsers import Piece, ToolParser
from gateway.tools.values import ToolCall
from gateway.turns.events import Event, Finished, Output, OutputRound, Started


class ToolChatWriter(ChatWriter):
    """Writes the answers of /v1/chat/completions to a request with tools."""

    def __init__(self, started: Started, answer_format: AnswerFormat, tokenizer: ModelTokenizer) -> None:
        super().__init__(started, answer_format, tokenizer)
        self._parsers = [self._parser() for _ in range(self.choices)]
        self._calls = [0] * self.choices
        """Calls written so far, of each choice."""
        self._waiting: list[list[OutputToken]] = [[] for _ in range(self.choices)]
        """Tokens of each choice that are in no chunk."""

    def holds(self, choice: int) -> bool:
        return self._parsers[choice].holds

    def chunks(self, event: Event) -> Iterator[Answer]:
        match event:
            case OutputRound(tokens=tokens, choice=choice):
                self.noted(event)
                self._waiting[choice] += tokens
                yield from self._pieces(choice, self._parsers[choice].feed(text_of(tokens)))
            case Finished(choice=choice):
                yield from self._pieces(choice, self._parsers[choice].end())
                yield from super().chunks(event)

    def _pieces(self, choice: int, pieces: Sequence[Piece]) -> Iterator[Answer]:
        for piece in pieces:
            delta = Delta(content=piece) if isinstance(piece, str) else Delta(tool_calls=[self._call(choice, piece)])
            tokens, self._waiting[choice] = self._waiting[choice], []
            logprobs = chat_logprobs(tokens, self._tokenizer.token_bytes)
            part = DeltaChoice(**self._choice(choice, tokens, None), delta=delta, logprobs=logprobs)
            yield self._chunk(self._chunk_head(), part)

    def _call(self, choice: int, piece: ToolCall, indexed: bool = True) -> CalledTool:
        index = self._calls[choice]
        self._calls[choice] += 1
        name = f"{self._started.turn.name} {choice} {index}"
        fields: dict[str, Any] = {"index": index} if indexed else {}
        return CalledTool(
            id=f"call_{hashlib.sha256(name.encode()).hexdigest()[:24]}",
            type="function",
            function=FunctionCall(name=piece.name, arguments=piece.arguments),
            **fields,
        )

    def _choice(self, index: int, tokens: Sequence[OutputToken], finished: Finished | None) -> dict[str, Any]:
        choice = super()._choice(index, tokens, finished)
        if choice["finish_reason"] == "stop" and self._calls[index]:
            choice["finish_reason"] = "tool_calls"
        return choice

    def _message_choice(self, index: int, output: Output) -> ChatChoice:
        parser = self._parser()
        pieces = [*parser.feed(text_of(output.tokens)), *parser.end()]
        calls = [self._call(index, piece, indexed=False) for piece in pieces if not isinstance(piece, str)]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        fields: dict[str, Any] = {"tool_calls": calls} if calls else {}
        content = text if text or not calls else None
        message = AssistantMessage(role="assistant", content=content, refusal=None, **fields)
        logprobs = chat_logprobs(output.tokens, self._tokenizer.token_bytes)
        return ChatChoice(**self._choice(index, output.tokens, output.finished), message=message, logprobs=logprobs)

    def _parser(self) -> ToolParser:
        return FORMATS[self._format.tools].parser()


def writer_for(started: Started, tokenizer: ModelTokenizer, answer_format: AnswerFormat | None) -> Writer:
    """A writer of that format, or for None of the one that the generation began with."""
    chosen = answer_format or AnswerFormat.parse(started.header.answer_format)
    kind: type[Writer] = ChatWriter if chosen.chat else CompletionWriter
    return (ToolChatWriter if chosen.tools in FORMATS else kind)(started, chosen, tokenizer)
