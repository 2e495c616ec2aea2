"""`specdec run`: one generation, streamed to the console."""

import json
from contextlib import closing
from dataclasses import asdict
from typing import Any

from rich.console import Console

from specdec.cli.client import GatewayClient
from specdec.cli.commands import render
from specdec.cli.commands.explain import show_report
from specdec.client.collect import collect
from specdec.client.connection import GatewayConnection
from specdec.client.events import GenerationResult, PromptRequest, RoundEvent


def show(console: Console, gateway: GatewayClient, request: PromptRequest, show_draft: bool) -> GenerationResult:
    """Stream a generation to the console, coloured and marked by origin, with a legend and one line of statistics."""
    started = False

    def on_round(round_: RoundEvent) -> None:
        nonlocal started
        if not started:
            console.print(render.legend(render.has_styles(console), show_draft or request.detail), soft_wrap=True)
            started = True
        render.show_round(console, round_, show_draft or request.detail)
        if round_.report is not None:
            console.print()
            show_report(console, round_.report)

    try:
        result = collect(gateway.stream(request), on_round)
    finally:
        if started:
            console.print()
    console.print(render.statistics(result), style="dim", markup=False, highlight=False, soft_wrap=True)
    return result


def run(
    console: Console, connection: GatewayConnection, request: PromptRequest, show_draft: bool, as_json: bool
) -> None:
    """Run the command: print a generation, as one JSON document when `as_json` is set."""
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
            "acceptance": result.accepted_share,
            "rounds": finished.rounds,
            "tokens_per_round": result.tokens_per_round,
            "fallbacks": dict(finished.fallbacks),
            "lossy": finished.lossy,
        },
        "first_token_seconds": result.first_token,
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
        **({"rounds": [asdict(each) for each in result.reports]} if result.reports else {}),
    }
