"""One generation as its client sees it, through as many connections as it takes."""

import time
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
    """Of each generation it took: how many of its tokens were shown."""
    contradictions: int = 0
    """Tokens that came again and were others."""
    interruptions: list[str] = field(default_factory=list)
    """Why connections ended before the generation did."""

    def take(self, event: str, tokens: Sequence[int], text: str, *, again: bool) -> None:
        """Take an event.

        Args:
            event: `generation.position`: the generation has shown `position` tokens with this event.
            tokens: of this event.
            text: theirs.
            again: the generation began anew, and tokens seen before are not news.
        """
        generation, _, position = event.rpartition(".")
        if generation not in self.shown:
            self.text = ""
        self.shown[generation] = max(self.shown.get(generation, 0), int(position))
        known = self.tokens[int(position) - len(tokens) :] if again else []
        self.contradictions += sum(old != new for old, new in zip(known, tokens, strict=False))
        self.tokens += tokens[len(known) :]
        self.text += text
        self.last_event = event
        self.arrivals.append(time.monotonic())

    @property
    def answer(self) -> Answer:
        """What it came to."""
        return Answer(tuple(self.tokens), self.text, self.finish)
