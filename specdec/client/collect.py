"""Collection of a generation's events into its result."""

import time
from collections.abc import Callable, Iterable

from specdec.client.events import Event, FinishedEvent, GenerationResult, RoundEvent, StartedEvent, Token
from specdec.errors import InternalError
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
    begin, first, first_tokens = clock(), None, 0
    started: StartedEvent | None = None
    tokens: list[Token] = []
    reports: list[RoundReport] = []
    for event in events:
        match event:
            case StartedEvent():
                started = event
            case RoundEvent():
                if first is None:
                    first, first_tokens = clock(), len(event.tokens)
                tokens += event.tokens
                reports += [event.report] if event.report else []
                on_round(event)
            case FinishedEvent() if started is not None:
                end = clock()
                first = end if first is None else first
                return GenerationResult(
                    started, tuple(tokens), event, first - begin, end - begin, tuple(reports), first_tokens
                )
    raise InternalError("the stream ended before the generation did")
