"""From the events of a generation to its result."""

import time
from collections.abc import Callable, Iterable

from specdec.client.events import Event, FinishedEvent, GenerationResult, RoundEvent, StartedEvent, Token
from specdec.errors import InternalError


def collect(
    events: Iterable[Event],
    on_round: Callable[[RoundEvent], None] = lambda round_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> GenerationResult:
    """Read a stream of events to its end, and take its time; `on_round` is called with each round as it comes.

    Raises:
        InternalError: the stream ended before its last event.
    """
    begin, first = clock(), None
    started: StartedEvent | None = None
    tokens: list[Token] = []
    for event in events:
        match event:
            case StartedEvent():
                started = event
            case RoundEvent():
                first = clock() if first is None else first
                tokens += event.tokens
                on_round(event)
            case FinishedEvent() if started is not None:
                end = clock()
                return GenerationResult(started, tuple(tokens), event, (first or end) - begin, end - begin)
    raise InternalError("the stream ended before the generation did")
