"""Rows of figures: shown as tables, kept as JSON lines, and written out as a page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine

FOLDER = Path(__file__).with_name("results")
PAGE = Path(__file__).with_name("RESULTS.md")
_INTRODUCTION = """\
# Results

Made by `make bench` from `results/*.jsonl`. A figure is a ratio of runs made in turn in one session (median, and the
middle half in brackets): absolute times wander. Greedy tokens of all peers of a row were compared and were identical.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing."""

    section: str
    name: str
    value: str
    target: str = ""
    """What is to be reached, when something is."""


@dataclass(frozen=True, slots=True)
class Report:
    """All of one section, and what must be known to read it."""

    section: str
    figures: Sequence[Figure]
    curves: Mapping[str, Sequence[tuple[float, float]]]
    """Name of a curve to its points."""


def show(console: Console, report: Report) -> None:
    """Print a section's table."""
    table = Table("", "value", "to reach", title=report.section)
    for figure in report.figures:
        table.add_row(figure.name, figure.value, figure.target)
    console.print(table)


def keep(report: Report, folder: Path = FOLDER) -> None:
    """Append one dated line to the section's file."""
    folder.mkdir(parents=True, exist_ok=True)
    line = {**machine(), "figures": [asdict(figure) for figure in report.figures], "curves": dict(report.curves)}
    with (folder / f"{report.section}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def write_page(folder: Path = FOLDER, page: Path = PAGE) -> None:
    """The page of the newest line of every section."""
    parts = [_INTRODUCTION]
    for file in sorted(folder.glob("*.jsonl")):
        newest = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
        parts.append(_section(file.stem, newest))
    page.write_text("\n".join(parts), encoding="utf-8")


def _section(name: str, line: Mapping[str, object]) -> str:
    where = f"{line['date']}, {line['cores']} cores of {line['cpu']}, torch {line['torch']}, commit {line['commit']}"
    figures = line["figures"]
    rows = [f"| {f['name']} | {f['value']} | {f['target']} |" for f in figures] if isinstance(figures, list) else []
    return "\n".join([f"## {name}\n\n{where}\n", "| what | value | to reach |", "|---|---|---|", *rows, ""])
