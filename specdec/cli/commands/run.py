"""`specdec run`: one generation, streamed to the console."""

import json
from contextlib import closing
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from specdec.cli.client import GatewayClient
from specdec.cli.commands import render
from specdec.cli.commands.render import printable
from specdec.client.collect import collect
from specdec.client.connection import GatewayConnection
from specdec.client.events import GenerationResult, PromptRequest, RoundEvent
from specdec.wire.report import ReportedDraft, RoundReport

_REASONS = {
    "fixed": "fixed by the request or the verifier's settings",
    "optimal": "best for this request alone, as it asks",
    "egag": "chosen by the drafter, by the entropy of its distributions (EGAG)",
    "goodput": "expected to give the most tokens per second",
    "trial": "a trial, which compares drafting with plain decoding",
    "room": "the output has no room for more",
    "source": "chosen by the source itself",
}


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
    """Run the command: print a generation, as one JSON document if `as_json` is set."""
    with closing(GatewayClient(connection)) as gateway:
        if as_json:
            console.out(json.dumps(report(collect(gateway.stream(request))), indent=2), highlight=False)
        else:
            show(console, gateway, request, show_draft)


def report(result: GenerationResult) -> dict[str, Any]:
    """The JSON output of a generation."""
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
            "accepted_share": result.accepted_share,
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


def show_report(console: Console, report: RoundReport) -> None:
    """Print one round's report."""
    for line in lines(report):
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
    if report.drafted:
        console.print(table(report))


def lines(report: RoundReport) -> list[str]:
    """Lines with the round's position and acceptance, its γ with the reason, and its times."""
    came = f"{report.accepted} of {len(report.drafted)} drafts of {report.drafter} accepted"
    if not report.drafted:
        came = f"no draft: {report.fallback}" if report.fallback else "no draft"
    why = _REASONS.get(report.gamma_reason, report.gamma_reason or "not kept")
    times = {
        "draft": report.draft_seconds,
        "network": report.network_seconds,
        "queue": report.queue_seconds,
        "pass": report.pass_seconds,
    }
    spent = " · ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in times.items())
    return [
        f"round after {report.base_len} tokens: {came}",
        f"  γ {report.gamma}: {why} · α {report.alpha:.2f}",
        f"  {spent}",
    ]


def table(report: RoundReport) -> Table:
    """Table of the tokens of a draft with the evidence for the verdict."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("token")
    by_entropy = any(token.h_norm is not None for token in report.drafted)
    for name in ("p", "q", "threshold", "u", *(("H_norm", "γ") if by_entropy else ())):
        made.add_column(name, justify="right")
    made.add_column("verdict")
    made.add_column("source")
    for token in report.drafted:
        verdict = "accepted" if token.accepted else "rejected"
        steps = _step(token) if by_entropy else ()
        made.add_row(repr(printable(token.text)), *_numbers(token), *steps, verdict, token.source)
    return made


def _numbers(token: ReportedDraft) -> list[str]:
    return [_number(value) for value in (token.p, token.q, token.threshold, token.u)]


def _step(token: ReportedDraft) -> tuple[str, str]:
    """H_norm and γ of the draft step."""
    return _number(token.h_norm), "–" if token.gamma is None else str(token.gamma)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
