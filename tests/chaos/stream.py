"""One generation as its client receives it, over one or more connections."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Scenario:
    """A request whose answer is a function of the request and the target alone."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of a complete generation."""

    tokens: tuple[int, ...]
    text: str
    finish: str


@dataclass(slots=True)
class Stream:
    """The part of an answer that a client has received so far."""

    scenario: str
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The idempotency key, with which the request may be sent again."""
    began: float = field(default_factory=time.monotonic)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    """The finish reason. Empty before the end, and always if the client gave up."""
    last_event: str = ""
    """The SSE id of the last event, or "" before the first one."""
    arrivals: list[float] = field(default_factory=list)
    """Arrival times of events, on the clock of `time.monotonic`."""
    shown: dict[str, int] = field(default_factory=dict)
    """Number of tokens received of each generation. There should be one generation."""
    interruptions: list[str] = field(default_factory=list)
    """Reasons why connections ended, except for the last one."""

    def take(self, event: str, tokens: Sequence[int], text: str) -> None:
        """Append the tokens and the text of an event.

        `event` is its SSE id, `generation.position`: `position` tokens have been sent including this event.
        """
        generation, _, position = event.rpartition(".")
        self.shown[generation] = max(self.shown.get(generation, 0), int(position))
        self.tokens += tokens
        self.text += text
        self.last_event = event
        self.arrivals.append(time.monotonic())

    @property
    def progressed(self) -> float:
        """Time of the last event, or of the first request if there is none."""
        return self.arrivals[-1] if self.arrivals else self.began

    @property
    def answer(self) -> Answer:
        """Return the output so far."""
        return Answer(tuple(self.tokens), self.text, self.finish)
