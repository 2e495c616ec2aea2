"""Figures, tables and curves of a section, printed and stored as one dated line of JSON per run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Shown

from benchmarks.machine import machine
from benchmarks.reports.statistics import Ratio

Line = Mapping[str, Any]
"""A stored run: a Report's fields, and the conditions of the run."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Limit that a figure must reach."""

    limit: float
    at_most: bool = False
    aim: float | None = None
    """A better value to aim for."""

    def __str__(self) -> str:
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}{aim}"

    def verdict(self, value: float) -> str:
        """Return in words whether `value` reaches the limit."""
        if not (value <= self.limit if self.at_most else value >= self.limit):
            return "no"
        return "yes" if self.aim is None else "yes, the aim too" if value >= self.aim else "yes, not the aim"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value."""

    name: str
    value: str
    goal: str = ""
    """The goal, or "" if there is none."""
    reached: str = ""
    """Whether the goal is reached, or "" if there is none."""


@dataclass(frozen=True, slots=True)
class Table:
    """Values printed as a table."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one axis."""

    name: str
    """Name of the picture's file."""
    x: str
    y: str
    curves: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one section, with explanatory text."""

    section: str
    text: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


def figure(name: str, ratio: Ratio, goal: Goal | None = None) -> Figure:
    """Return a median with its spread, and whether it reaches its goal."""
    return Figure(name, str(ratio), str(goal), goal.verdict(ratio.value)) if goal else Figure(name, str(ratio))


def same_tokens(identical: int, total: int) -> Figure:
    """Return the number of comparisons with equal tokens."""
    return Figure("greedy tokens identical", f"{identical} of {total}", "all", "yes" if identical == total else "no")


def show(console: Console, report: Report) -> None:
    """Print a section."""
    head = Table(("what", "value", "to reach", "reached"), [list(asdict(each).values()) for each in report.figures])
    for table in (head, *report.tables):
        if table.rows:
            shown = Shown(*table.head, title=report.section)
            for row in table.rows:
                shown.add_row(*row)
            console.print(shown)


def keep(report: Report, folder: Path, **about: object) -> None:
    """Append a line to the section's file. `about` describes the conditions of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    line = {**machine(), **about, **asdict(report)}
    with (folder / f"{report.section}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def lines(section: str, folder: Path) -> list[Line]:
    """Return every run of a section, the newest last."""
    file = folder / f"{section}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
