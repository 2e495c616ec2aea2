"""What `specdec run --explain` prints of a round: one line about it, and a table of its draft."""

from rich import box
from rich.console import Console
from rich.table import Table

from specdec.cli.commands.render import printable
from specdec.wire.report import ReportedDraft, RoundReport

_REASONS = {
    "fixed": "fixed by the request or the verifier's settings",
    "optimal": "best for this request alone, as it asks",
    "egag": "chosen by the drafter, by the entropy of its distributions (EGAG)",
    "goodput": "the batch is expected to commit most tokens a second with it",
    "trial": "a trial of the way that is not in use",
    "room": "the output has no room for more",
    "source": "chosen by the source itself",
}


def show_report(console: Console, report: RoundReport) -> None:
    """Print one round's report."""
    for line in lines(report):
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
    if report.drafted:
        console.print(table(report))


def lines(report: RoundReport) -> list[str]:
    """Where the round begins, what it asked for and why, and where its time went."""
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
        f"round behind {report.base_len} tokens: {came}",
        f"  γ {report.gamma}: {why} · α {report.alpha:.2f}",
        f"  {spent}",
    ]


def table(report: RoundReport) -> Table:
    """The tokens of a draft with the numbers that the verdict rests on."""
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
