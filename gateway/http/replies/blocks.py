"""Splits a message into blocks of thinking, text or one call, for APIs whose answers are lists of items."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.text.output import OutputToken, text_of
from gateway.tools.message_reader import ReadMessage
from gateway.tools.values import CallDelta
from gateway.turns.events import Finished, Output, OutputRound
from specdec.sampling.params import FinishReason

Kind = Literal["thinking", "text", "call", "custom"]


@dataclass(slots=True)
class AnswerBlock:
    """Thinking, text or a tool call, as received so far."""

    index: int
    kind: Kind
    content: str = ""
    """Text, or arguments of the call; of a custom tool, its input."""
    id: str = ""
    """Id of the call."""
    name: str = ""
    """Name of the tool."""
    tokens: list[OutputToken] = field(default_factory=list)
    """Output tokens of a text, from the end of the block before it, that have log probabilities."""
    cut: bool = False
    """Whether the limit of tokens ended the output in this block, or the block is an unfinished call."""

    def end(self, finished: Finished | None) -> None:
        """Set `cut` at the end of the block; `finished` is None if the output goes on after it."""
        if self.kind == "call":
            self.cut = not _is_whole(self.content)
        if finished is not None:
            unfinished = self.kind == "custom" and not finished.called
            self.cut = self.cut or unfinished or finished.reason is FinishReason.LENGTH


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """Beginning, continuation or end of a block."""

    what: Literal["begin", "more", "end"]
    block: AnswerBlock
    more: str = ""
    """Next characters of the content."""
    tokens: Sequence[OutputToken] = ()
    """Next tokens of a text."""


@dataclass(slots=True)
class Blocks:
    """Builds the blocks of one answer from the events of its generation."""

    known: list[AnswerBlock] = field(default_factory=list)
    _open: AnswerBlock | None = None
    _waiting: list[OutputToken] = field(default_factory=list)
    """Tokens with log probabilities whose text has not come yet."""

    def take(self, event: OutputRound | Finished) -> Iterator[BlockEvent]:
        """Yield the block events of a generation event."""
        message = event.message
        text = message.content if message else ""
        if isinstance(event, OutputRound):
            self._waiting += scored(event.tokens)
            text = event.text if message is None else text
        calls = message.calls if message else ()
        yield from self._goes_on(call.arguments for call in calls if not call.name)
        if message and message.reasoning:
            yield from self._more("thinking", message.reasoning)
        if text:
            yield from self._more("text", text)
        for call in calls:
            yield from self._call(call)
        if isinstance(event, Finished):
            yield from self._end(event)

    def _goes_on(self, arguments: Iterable[str]) -> Iterator[BlockEvent]:
        """Continue the open call. Its last arguments precede the rest of an event."""
        for more in arguments:
            if self._open is not None and more:
                self._open.content += more
                yield BlockEvent("more", self._open, more)

    def _call(self, call: CallDelta) -> Iterator[BlockEvent]:
        """Begin a call."""
        if call.name:
            kind: Kind = "custom" if call.custom else "call"
            yield from self._end()
            yield self._begin(kind, call.id, call.name)
            yield from self._more(kind, call.arguments)

    def _more(self, kind: Kind, text: str) -> Iterator[BlockEvent]:
        if self._open is None or self._open.kind != kind:
            yield from self._end()
            yield self._begin(kind)
        if self._open is not None and text:
            tokens, self._waiting = self._waiting if kind == "text" else [], []
            self._open.content += text
            self._open.tokens += tokens
            yield BlockEvent("more", self._open, text, tokens)

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> BlockEvent:
        self._open = AnswerBlock(len(self.known), kind, "", call_id, name)
        self.known.append(self._open)
        return BlockEvent("begin", self._open)

    def _end(self, finished: Finished | None = None) -> Iterator[BlockEvent]:
        if self._open is not None:
            self._open.tokens += self._waiting if finished and self._open.kind == "text" else ()
            self._open.end(finished)
            yield BlockEvent("end", self._open)
        self._open = None


def scored(tokens: Iterable[OutputToken]) -> list[OutputToken]:
    """Return the tokens that have log probabilities."""
    return [token for token in tokens if token.logprobs is not None]


def blocks_of(output: Output) -> list[AnswerBlock]:
    """Return the blocks of a whole answer."""
    message = output.message or ReadMessage(text_of(output.tokens), ())
    texts: list[tuple[Kind, str]] = [("thinking", message.reasoning), ("text", message.content)]
    blocks = [AnswerBlock(0, kind, text) for kind, text in texts if text]
    for block in blocks[-1:] if message.content else ():
        block.tokens += scored(output.tokens)
    for call in message.calls:
        blocks.append(AnswerBlock(0, "custom" if call.custom else "call", call.arguments, call.id, call.name))
    for index, block in enumerate(blocks):
        block.index = index
        block.end(output.finished if index == len(blocks) - 1 else None)
    return blocks


def _is_whole(arguments: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
