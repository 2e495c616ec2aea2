"""Collection of a generation's events into its result."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from specdec.client.events import (
    AnswerDelta,
    AnswerMessage,
    ChoiceResult,
    Event,
    FinishedEvent,
    GenerationResult,
    RoundEvent,
    StartedEvent,
    Token,
)
from specdec.client.requests import ToolInvocation
from specdec.errors import InternalError
from specdec.sampling.logprobs import TokenLogprobs
from specdec.wire.report import RoundReport


def collect(
    events: Iterable[Event],
    on_round: Callable[[RoundEvent], None] = lambda round_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> GenerationResult:
    """Read a stream of events to its end and measure its times. `on_round` is called with each round on arrival.

    Raises:
        InternalError: the stream ended before its last event.
    """
    collector = Collector(clock)
    for event in events:
        collector.take(event)
        if isinstance(event, RoundEvent):
            on_round(event)
    return collector.result()


class Collector:
    """Joins events in the order of their arrival. Its construction begins the measurement of time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begin = self._end = clock()
        self._first: float | None = None
        self._first_tokens = 0
        self._started: StartedEvent | None = None
        self._choices: dict[int, _Choice] = {}

    def take(self, event: Event) -> None:
        """Add the next event."""
        match event:
            case StartedEvent():
                self._started = event
            case RoundEvent():
                if self._first is None:
                    self._first, self._first_tokens = self._clock(), len(event.tokens)
                self._choice(event.choice).take(event)
            case FinishedEvent():
                self._end = self._clock()
                self._choice(event.choice).finish(event)

    def result(self) -> GenerationResult:
        """Return the result. Raises InternalError if an event is missing."""
        choices = tuple(self._choices[index].result() for index in sorted(self._choices))
        if self._started is None or not choices:
            raise InternalError("the stream ended before the generation did")
        first, begun = choices[0], self._end if self._first is None else self._first
        return GenerationResult(
            self._started,
            first.tokens,
            first.finished,
            begun - self._begin,
            self._end - self._begin,
            first.reports,
            self._first_tokens,
            choices,
        )

    def _choice(self, index: int) -> "_Choice":
        return self._choices.setdefault(index, _Choice())


class _Choice:
    """Events of one choice."""

    def __init__(self) -> None:
        self._tokens: list[Token] = []
        self._reports: list[RoundReport] = []
        self._logprobs: tuple[TokenLogprobs, ...] = ()
        self._content = self._reasoning = ""
        self._calls: dict[int, ToolInvocation] = {}
        self._finished: FinishedEvent | None = None

    def take(self, event: RoundEvent) -> None:
        self._tokens += event.tokens
        self._reports += [event.report] if event.report else []
        self._logprobs += event.prompt_logprobs
        self._read(event.message)

    def finish(self, event: FinishedEvent) -> None:
        self._finished = event
        self._read(event.message)

    def result(self) -> ChoiceResult:
        if self._finished is None:
            raise InternalError("the stream ended before the generation did")
        calls = tuple(self._calls[index] for index in sorted(self._calls))
        message = AnswerMessage(self._content, calls, self._reasoning)
        return ChoiceResult(tuple(self._tokens), self._finished, message, tuple(self._reports), self._logprobs)

    def _read(self, delta: AnswerDelta | None) -> None:
        if delta is None:
            return
        self._content += delta.content
        self._reasoning += delta.reasoning
        for part in delta.tool_calls:
            known = self._calls.get(part.index, ToolInvocation(part.name, "", part.id, part.custom))
            self._calls[part.index] = replace(known, arguments=known.arguments + part.arguments)
