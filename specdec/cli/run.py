"""`specdec run`: one generation, streamed."""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console

from specdec.cli import render
from specdec.cli.client import Gateway
from specdec.cli.events import Event, Finished, Outcome, Request, Round, Started, Token
from specdec.errors import InternalError


def collect(
    events: Iterable[Event],
    on_round: Callable[[Round], None] = lambda round_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
    """Follow a stream to its end.

    Args:
        on_round: called with each round as it comes.
        clock: seconds; time starts to run with the first read.

    Raises:
        InternalError: the stream ended without a last event.
    """
    begin, first = clock(), None
    started: Started | None = None
    tokens: list[Token] = []
    for event in events:
        match event:
            case Started():
                started = event
            case Round():
                first = clock() if first is None else first
                tokens += event.tokens
                on_round(event)
            case Finished() if started is not None:
                end = clock()
                return Outcome(started, tuple(tokens), event, (first or end) - begin, end - begin)
    raise InternalError("the stream ended before the generation did")


def show(console: Console, gateway: Gateway, request: Request, show_draft: bool) -> Outcome:
    """Stream a generation to the console, coloured and marked by origin, with a legend and one line of statistics.

    Raises:
        SpecdecError: see Gateway.stream.
    """
    started = False

    def on_round(round_: Round) -> None:
        nonlocal started
        if not started:
            console.print(render.legend(render.has_styles(console), show_draft), soft_wrap=True)
            started = True
        render.show_round(console, round_, show_draft)

    try:
        outcome = collect(gateway.stream(request), on_round)
    finally:
        if started:
            console.print()
    console.print(render.statistics(outcome), style="dim", markup=False, highlight=False, soft_wrap=True)
    return outcome


def run(console: Console, address: str, request: Request, show_draft: bool, as_json: bool) -> None:
    """The command.

    Raises:
        SpecdecError: see Gateway.stream.
    """
    with Gateway(address) as gateway:
        if as_json:
            console.out(json.dumps(report(collect(gateway.stream(request))), indent=2), highlight=False)
        else:
            show(console, gateway, request, show_draft)


def report(outcome: Outcome) -> dict[str, Any]:
    """A generation as JSON."""
    finished = outcome.finished
    return {
        "id": outcome.started.id,
        "model": outcome.started.model,
        "seed": outcome.started.seed,
        "text": outcome.text,
        "tokens": [{"id": token.id, "text": token.text, "origin": token.origin} for token in outcome.tokens],
        "finish_reason": finished.reason,
        "usage": {"prompt_tokens": finished.prompt_tokens, "completion_tokens": finished.completion_tokens},
        "speculation": {
            "drafted": finished.drafted,
            "accepted": finished.accepted,
            "acceptance": outcome.acceptance,
            "rounds": finished.rounds,
            "tokens_per_round": outcome.tokens_per_round,
            "fallbacks": dict(finished.fallbacks),
            "lossy": finished.lossy,
        },
        "first_token_seconds": outcome.first_token,
        "seconds": outcome.seconds,
        "tokens_per_second": outcome.tokens_per_second,
    }
