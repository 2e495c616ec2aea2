"""Parses a model's message into thinking, text and tool calls."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gateway.tools.custom import InputReader
from gateway.tools.parsers import Piece
from gateway.tools.reading import Reading
from gateway.tools.values import CallDelta, MessageDelta, Thought, ToolCall


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """Parsed message, possibly truncated."""

    content: str
    """Text around the calls."""
    calls: tuple[ToolCall, ...]
    """Tool calls; the last one is incomplete if the output was truncated."""
    reasoning: str = ""
    """Thinking before the answer."""


class MessageReader:
    """Incremental parser of one answer."""

    def __init__(self, reading: Reading, generation: str) -> None:
        """Args: generation: public id of the answer's generation, from which call ids are derived."""
        self.tags = reading.tags
        """Names of the special tokens to parse; the text contains them by name."""
        self._parser = reading.parser()
        self._parallel = reading.parallel
        self._custom = frozenset(reading.custom)
        self._input: InputReader | None = None
        """Reader of the current call's input; None if its tool is not custom."""
        self._current = 0
        """Index of the current call of a custom tool."""
        self._thinking = reading.thinking_reader()
        self._shows_thinking = reading.shown
        self._generation = generation
        self._called = False

    @property
    def called(self) -> bool:
        """Whether the message has calls and all are complete."""
        return self._called and not self._parser.cut

    def feed(self, text: str) -> MessageDelta:
        """Add text; return the part of the message that is now final."""
        parts = [text] if self._thinking is None else self._thinking.feed(text)
        return self._delta(self._read(parts))

    def end(self) -> MessageDelta:
        """End the text; return the rest of the message."""
        parts = [] if self._thinking is None else self._thinking.end()
        return self._delta([*self._read(parts), *self._parser.end(), ""])

    def _read(self, parts: Iterable[Thought | str]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            pieces += [part] if isinstance(part, Thought) else self._parser.feed(part)
        return pieces

    def _delta(self, pieces: Iterable[Piece]) -> MessageDelta:
        content, reasoning, calls = "", "", dict[int, CallDelta]()
        for piece in self._as_inputs(pieces):
            match piece:
                case str():
                    content += piece
                case Thought(text):
                    reasoning += text if self._shows_thinking else ""
                case CallDelta(index) if index and not self._parallel:
                    pass  # the caller may take only one
                case CallDelta(index) if index in calls:
                    calls[index] = replace(calls[index], arguments=calls[index].arguments + piece.arguments)
                case CallDelta(index):
                    calls[index] = replace(piece, id=self._id(index)) if piece.name else piece
        self._called = self._called or bool(calls)
        return MessageDelta(content, tuple(calls.values()), reasoning)

    def _as_inputs(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces, with the inputs of custom tools in place of their arguments."""
        for piece in pieces:
            if self._input and not (isinstance(piece, CallDelta) and not piece.name):
                rest, self._input = self._input.end(), None
                if rest:
                    yield CallDelta(self._current, arguments=rest, custom=True)
            if isinstance(piece, CallDelta) and piece.name in self._custom:
                self._input, self._current = InputReader(), piece.index
            if self._input and isinstance(piece, CallDelta):
                yield replace(piece, arguments=self._input.feed(piece.arguments), custom=True)
            else:
                yield piece

    def _id(self, index: int) -> str:
        return f"call_{hashlib.sha256(f'{self._generation} {index}'.encode()).hexdigest()[:24]}"


def joined_message(deltas: Iterable[MessageDelta]) -> ReadMessage:
    """Join all parts of a message."""
    content, reasoning, calls = "", "", dict[int, ToolCall]()
    for delta in deltas:
        content += delta.content
        reasoning += delta.reasoning
        for part in delta.calls:
            begun = calls.setdefault(part.index, ToolCall(part.name, "", part.id, part.custom))
            calls[part.index] = replace(begun, arguments=begun.arguments + part.arguments)
    return ReadMessage(content, tuple(calls.values()), reasoning)
