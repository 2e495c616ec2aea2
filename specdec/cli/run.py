"""`specdec run`: one generation, streamed to the console."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from rich.console import Console

from specdec.cli import render
from specdec.cli.client import Connection, GatewayClient
from specdec.cli.events import Event, FinishedEvent, GenerationResult, PromptRequest, RoundEvent, StartedEvent, Token
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


def show(console: Console, gateway: GatewayClient, request: PromptRequest, show_draft: bool) -> GenerationResult:
    """Stream a generation to the console, coloured and marked by origin, with a legend and one line of statistics.

    Raises:
        SpecdecError: the gateway refused the request, failed, or cannot be reached.
    """
    started = False

    def on_round(round_: RoundEvent) -> None:
        nonlocal started
        if not started:
            console.print(render.legend(render.has_styles(console), show_draft), soft_wrap=True)
            started = True
        render.show_round(console, round_, show_draft)

    try:
        result = collect(gateway.stream(request), on_round)
    finally:
        if started:
            console.print()
    console.print(render.statistics(result), style="dim", markup=False, highlight=False, soft_wrap=True)
    return result


def run(console: Console, connection: Connection, request: PromptRequest, show_draft: bool, as_json: bool) -> None:
    """Run the command: print a generation, as one JSON document when `as_json` is set.

    Raises:
        SpecdecError: the gateway refused the request, failed, or cannot be reached.
    """
    with closing(GatewayClient(connection)) as gateway:
        if as_json:
            console.out(json.dumps(report(collect(gateway.stream(request))), indent=2), highlight=False)
        else:
            show(console, gateway, request, show_draft)


def report(result: GenerationResult) -> dict[str, Any]:
    """A generation as it is printed in JSON."""
    finished = result.finished
    return {
        "id": result.started.id,
        "model": result.started.model,
        "seed": result.started.seed,
        "text": result.text,
        "tokens": [{"id": token.id, "text": token.text, "origin": token.origin} for token in result.tokens],
        "finish_reason": finished.reason,
        "usage": {"prompt_tokens": finished.prompt_tokens, "completion_tokens": finished.completion_tokens},
        "speculation": {
            "drafted": finished.drafted,
            "accepted": finished.accepted,
            "acceptance": result.acceptance,
            "rounds": finished.rounds,
            "tokens_per_round": result.tokens_per_round,
            "fallbacks": dict(finished.fallbacks),
            "lossy": finished.lossy,
        },
        "first_token_seconds": result.first_token,
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
    }
