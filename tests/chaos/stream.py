"""One generation as its client sees it, through as many connections as it takes."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Scenario:
    """A request whose answer depends on nothing but the target."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a whole generation came to."""

    tokens: tuple[int, ...]
    text: str
    finish: str


@dataclass(slots=True)
class Stream:
    """Grows while events arrive."""

    scenario: str
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names the request, so that it may be sent again."""
    began: float = field(default_factory=time.monotonic)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    """Empty while it goes on, and for ever when the client gave up."""
    last_event: str = ""
    """The SSE id of the last event; empty before the first."""
    arrivals: list[float] = field(default_factory=list)
    """When events came, on the clock of `time.monotonic`."""
    shown: dict[str, int] = field(default_factory=dict)
    """Of each generation, and there should be one: how many of its tokens were shown."""
    interruptions: list[str] = field(default_factory=list)
    """Why connections ended before the generation did."""

    def take(self, event: str, tokens: Sequence[int], text: str) -> None:
        """Take an event's tokens and their text.

        `event` is `generation.position`: the generation has shown `position` tokens with this event.
        """
        generation, _, position = event.rpartition(".")
        self.shown[generation] = max(self.shown.get(generation, 0), int(position))
        self.tokens += tokens
        self.text += text
        self.last_event = event
        self.arrivals.append(time.monotonic())

    @property
    def answer(self) -> Answer:
        """What it came to."""
        return Answer(tuple(self.tokens), self.text, self.finish)
