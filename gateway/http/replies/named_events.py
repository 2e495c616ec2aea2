"""Streams of named events, in which each event is an object with its type first; there is no `[DONE]`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from gateway.http.replies.blocks import BlockEvent, Blocks
from gateway.turns.events import Event, Finished, Output, OutputRound, Started
from specdec.errors import SpecdecError


class NamedEventsWriter(ABC):
    """Writes the answer to one request of one choice, whole or event by event."""

    sparse = False
    choices = 1
    repeats = 0
    ending = b""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._blocks = Blocks()

    @abstractmethod
    def whole(self, outputs: Sequence[Output]) -> BaseModel:
        """Return the whole answer."""

    @abstractmethod
    def opening(self) -> Iterator[bytes]:
        """Yield the events before the first round, as JSON."""

    @abstractmethod
    def failure(self, error: SpecdecError) -> bytes:
        """Return the last event of a failed stream."""

    @abstractmethod
    def _block(self, event: BlockEvent) -> Iterator[bytes]:
        """Yield the events of a block."""

    @abstractmethod
    def _end(self, finished: Finished) -> Iterator[bytes]:
        """Yield the last events."""

    def chunks(self, event: Event) -> Iterator[bytes]:
        """Yield the events of a round or of the end, as JSON."""
        if isinstance(event, OutputRound | Finished):
            for each in self._blocks.take(event):
                yield from self._block(each)
        if isinstance(event, Finished):
            yield from self._end(event)

    def framed(self, chunk: bytes) -> bytes:
        """Return an event of a stream, named by its type."""
        name = chunk[len(b'{"type":"') : chunk.index(b'"', len(b'{"type":"'))]
        return b"event: %b\ndata: %b\n\n" % (name, chunk)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        return to_json({"type": name, **fields})
