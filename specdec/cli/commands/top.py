"""`specdec top`: a live view of the fleet, with a table for each role."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specdec.cli import options
from specdec.cli.exit_codes import Unreachable
from specdec.cli.fleet import Fleet, Look, urls_of
from specdec.cli.local.signals import Stop, stop_on_signals
from specdec.serving.telemetry.scrapes import ScrapedProcess

Column = tuple[str, Callable[[ScrapedProcess], str]]
"""A heading, and a function that formats the cell of a process."""


def command(
    sources: options.Processes = None,
    state: options.StateFile = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    looks: Annotated[int, typer.Option(min=0, help="Looks after which it ends; 0 is never.")] = 0,
    api_key: options.ApiKey = "",
) -> None:
    """Show live metrics of gateways, verifiers and drafters; by default those of `specdec up`."""
    fleet = Fleet(urls_of(sources or (), state), api_key)
    with stop_on_signals() as stop:
        top(Console(), fleet, every, looks, stop)


def top(console: Console, fleet: Fleet, every: float, looks: int, stop: Stop) -> None:
    """Show the fleet until a stop signal, or for `looks` updates; 0 is no limit.

    Raises:
        Unreachable: no process answers the first read.
    """
    look = fleet.look()
    if not look.processes:
        raise Unreachable(f"nothing answers at {', '.join(look.silent)}: is it running? --from and --state say where")
    with Live(frame(look), console=console, auto_refresh=False) as live:
        done = 1
        while done != looks and not stop.wait(every):
            live.update(frame(fleet.look()), refresh=True)
            done += 1


def frame(look: Look) -> RenderableType:
    """Tables of one look."""
    tables = [_table(role, columns, look.of(role)) for role, columns in _COLUMNS.items()]
    silent = [Text(f"no answer: {url}", style="red") for url in look.silent]
    return Group(*tables, *silent)


def _table(role: str, columns: Sequence[Column], processes: Sequence[ScrapedProcess]) -> Table:
    made = Table(title=f"{len(processes)} {role}{'' if len(processes) == 1 else 's'}", box=box.SIMPLE_HEAD)
    made.title_justify = "left"
    made.add_column("address", no_wrap=True)
    for heading, _ in columns:
        made.add_column(heading, justify="right")
    for process in processes:
        address = process.url.partition("://")[2].removesuffix("/metrics")
        made.add_row(address, *(show(process) for _, show in columns))
    return made


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.1f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"


def _ratio(process: ScrapedProcess, part: str, whole: str) -> float | None:
    grown = process.grown(whole)
    return process.grown(part) / grown if grown else None


_COLUMNS: dict[str, Sequence[Column]] = {
    "gateway": (
        ("running", lambda it: _number(it.gauge("specdec_gateway_requests_running"))),
        ("waiting", lambda it: _number(it.gauge("specdec_gateway_requests_waiting"))),
        ("requests/s", lambda it: _number(it.rate("specdec_requests_total"), 1)),
        ("tokens/s", lambda it: _number(it.rate("specdec_tokens_total", kind="output"))),
        ("first token ms", lambda it: _milliseconds(it.mean("specdec_time_to_first_token_seconds"))),
        ("verifiers ready", lambda it: _number(it.gauge("specdec_verifiers_ready"))),
        ("store", lambda it: "up" if it.gauge("specdec_session_store_up") else "DOWN"),
    ),
    "verifier": (
        ("running", lambda it: _number(it.gauge("specdec_requests_running"))),
        ("waiting", lambda it: _number(it.gauge("specdec_requests_waiting"))),
        ("tokens/s", lambda it: _number(it.rate("specdec_spec_tokens_by_origin_total"))),
        ("accepted %", lambda it: _percent(_ratio(it, "specdec_spec_accepted_tokens_total", _DRAFTED))),
        ("α", lambda it: _number(it.gauge("specdec_spec_alpha"), 2)),
        ("γ", lambda it: _number(it.mean("specdec_spec_gamma"), 1)),
        ("speed-up", lambda it: _number(it.gauge("specdec_spec_speedup_predicted"), 2)),
        ("groups", lambda it: _number(it.gauge("specdec_batch_groups"))),
        ("pass ms", lambda it: _milliseconds(it.mean("specdec_verify_pass_seconds"))),
        ("busy %", lambda it: _percent(it.rate("specdec_verify_pass_seconds_sum"))),
        ("KV %", lambda it: _percent(it.gauge("specdec_kv_cache_usage_ratio"))),
        ("drafters ready", lambda it: _number(it.gauge("specdec_drafter_up", state="ready"))),
    ),
    "drafter": (
        ("sessions", lambda it: _number(it.gauge("specdec_drafter_sessions"))),
        ("verifiers", lambda it: _number(it.gauge("specdec_drafter_streams"))),
        ("tokens/s", lambda it: _number(it.rate("specdec_drafter_tokens_total"))),
        ("batch", lambda it: _number(it.mean("specdec_drafter_batch_size"), 1)),
        ("step ms", lambda it: _milliseconds(it.mean("specdec_drafter_step_seconds"))),
        ("busy %", lambda it: _percent(it.rate("specdec_drafter_step_seconds_sum"))),
    ),
}
_DRAFTED = "specdec_spec_draft_tokens_total"
