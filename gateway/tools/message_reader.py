"""Reads the message that a model writes to a caller who offered tools: its text, and its calls with their names."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.tools.parsers import Piece, ToolParser
from gateway.tools.values import CallDelta, MessageDelta, ToolCall


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """A message as far as the model wrote it."""

    content: str
    """The text around the calls."""
    calls: tuple[ToolCall, ...]
    """The last one is incomplete where the output was cut."""


class MessageReader:
    """One answer, whose text comes in pieces."""

    def __init__(self, parser: ToolParser, generation: str, *, parallel: bool = True) -> None:
        """Read an answer.

        Args:
            generation: public id of the answer's generation, from which the ids of its calls are made.
            parallel: whether calls behind the first are read, too; the caller may take only one.
        """
        self._parser = parser
        self._parallel = parallel
        self._generation = generation
        self.called = False
        """Whether a call has begun."""

    def feed(self, text: str) -> MessageDelta:
        """What is certain now that more text has come."""
        return self._delta(self._parser.feed(text))

    def end(self) -> MessageDelta:
        """What is left when no more comes."""
        return self._delta(self._parser.end())

    def _delta(self, pieces: Iterable[Piece]) -> MessageDelta:
        content, calls = "", dict[int, CallDelta]()
        for piece in pieces:
            if isinstance(piece, str):
                content += piece
            elif piece.index and not self._parallel:
                continue
            elif piece.index in calls:
                begun = calls[piece.index]
                calls[piece.index] = replace(begun, arguments=begun.arguments + piece.arguments)
            else:
                calls[piece.index] = replace(piece, id=self._id(piece.index)) if piece.name else piece
        self.called = self.called or bool(calls)
        return MessageDelta(content, tuple(calls.values()))

    def _id(self, index: int) -> str:
        return f"call_{hashlib.sha256(f'{self._generation} {index}'.encode()).hexdigest()[:24]}"


def joined_message(deltas: Iterable[MessageDelta]) -> ReadMessage:
    """The message of which those are all parts."""
    content, calls = "", dict[int, ToolCall]()
    for delta in deltas:
        content += delta.content
        for part in delta.calls:
            begun = calls.setdefault(part.index, ToolCall(part.name, "", part.id))
            calls[part.index] = replace(begun, arguments=begun.arguments + part.arguments)
    return ReadMessage(content, tuple(calls.values()))
