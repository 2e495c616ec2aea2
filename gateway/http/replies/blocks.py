"""A message as a sequence of blocks, thinking, text or one call each, for APIs whose answers are lists of items."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.text.output import text_of
from gateway.tools.message_reader import ReadMessage
from gateway.tools.values import CallDelta
from gateway.turns.events import Finished, Output, OutputRound

Kind = Literal["thinking", "text", "call"]


@dataclass(slots=True)
class AnswerBlock:
    """What the model thinks, a text, or a call of a tool, as far as it has come."""

    index: int
    kind: Kind
    content: str = ""
    """The text, or the arguments of the call."""
    id: str = ""
    """The id of the call."""
    name: str = ""
    """The name of the tool."""


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block begins, goes on, or ends."""

    what: Literal["begin", "more", "end"]
    block: AnswerBlock
    more: str = ""
    """The next characters of its content."""


@dataclass(slots=True)
class Blocks:
    """The blocks of one answer, from the events of its generation."""

    known: list[AnswerBlock] = field(default_factory=list)
    _open: AnswerBlock | None = None

    def take(self, event: OutputRound | Finished) -> Iterator[BlockEvent]:
        """What becomes of the blocks with an event."""
        message = event.message
        text = message.content if message else ""
        if isinstance(event, OutputRound) and message is None:
            text = event.text
        calls = message.calls if message else ()
        yield from self._goes_on(call.arguments for call in calls if not call.name)
        if message and message.reasoning:
            yield from self._more("thinking", message.reasoning)
        if text:
            yield from self._more("text", text)
        for call in calls:
            yield from self._call(call)
        if isinstance(event, Finished):
            yield from self._end()

    def _goes_on(self, arguments: Iterable[str]) -> Iterator[BlockEvent]:
        """More of the call that is open: it ended before whatever else an event tells, which came behind it."""
        for more in arguments:
            yield from self._more("call", more)

    def _call(self, call: CallDelta) -> Iterator[BlockEvent]:
        """A call that begins."""
        if call.name:
            yield from self._end()
            yield self._begin("call", call.id, call.name)
            yield from self._more("call", call.arguments)

    def _more(self, kind: Kind, text: str) -> Iterator[BlockEvent]:
        if self._open is None or self._open.kind != kind:
            yield from self._end()
            yield self._begin(kind)
        if self._open is not None and text:
            self._open.content += text
            yield BlockEvent("more", self._open, text)

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> BlockEvent:
        self._open = AnswerBlock(len(self.known), kind, "", call_id, name)
        self.known.append(self._open)
        return BlockEvent("begin", self._open)

    def _end(self) -> Iterator[BlockEvent]:
        if self._open is not None:
            yield BlockEvent("end", self._open)
        self._open = None


def blocks_of(output: Output) -> list[AnswerBlock]:
    """The blocks of a whole answer."""
    message = output.message or ReadMessage(text_of(output.tokens), ())
    texts: list[tuple[Kind, str]] = [("thinking", message.reasoning), ("text", message.content)]
    blocks = [AnswerBlock(0, kind, text) for kind, text in texts if text]
    blocks += [AnswerBlock(0, "call", call.arguments, call.id, call.name) for call in message.calls]
    return [replace(block, index=index) for index, block in enumerate(blocks)]
