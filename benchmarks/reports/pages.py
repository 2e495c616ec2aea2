"""RESULTS.md, with a section for every command, and docs/performance.md, made from the newest run of each section."""

import argparse
import csv
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.machine import ROOT
from benchmarks.reports.markdown import QUICK, table
from benchmarks.reports.plots import draw
from benchmarks.reports.results import Line, Report, keep, lines, show
from benchmarks.reports.summary import ORDER, performance

_RESULTS = """\
# Results

Each section is written by the command it names. It has the newest run; `results/` has all runs whole, a line of JSON
each, and the long tables as CSV. [Performance](../docs/performance.md) is the summary.

Absolute times vary on shared machines, so a figure is a ratio of runs made in turns in one session: the median of the
pairs, and the middle half of them in brackets. A peer is a process of its own. "HF" is `generate()` of `transformers`
on the same weights in float32; "assisted" is its own speculative decoding with the same drafter, at its defaults or
at five constant tokens. A process has one thread unless the row says two: the stack keeps two cores busy, so HF is
shown with two as well. The stack is `specdec up --compile`: gateway, verifier, drafter and Redis as processes, called
through gRPC. Every request has a `cache_salt` of its own, so nothing is reused between requests. Our models are
compiled in process too, unless a row says otherwise, and `generate()` runs as installed. Output is greedy unless the
text says otherwise.
"""
_WIDE = 150
"""Columns that the widest table needs."""
LONG = 8
"""Number of rows above which a table is a CSV file instead of a part of the page."""


@dataclass(frozen=True, slots=True)
class Places:
    """Files and folders for results."""

    lines: Path
    results: Path
    performance: Path
    pictures: Path

    @classmethod
    def below(cls, folder: Path) -> "Places":
        """Return places that are all below one folder."""
        return cls(folder / "results", folder / "RESULTS.md", folder / "performance.md", folder / "performance")


REPOSITORY = Places(
    ROOT / "benchmarks" / "results",
    ROOT / "benchmarks" / "RESULTS.md",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "performance",
)


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add the option of every command that measures."""
    text = "a folder for all that is written, in place of the repository's own places"
    parser.add_argument("--out", type=lambda folder: Places.below(Path(folder)), default=REPOSITORY, help=text)


def publish(report: Report, command: str, places: Places = REPOSITORY, **about: object) -> None:
    """Print a section, store it, and write it into the pages."""
    show(Console(width=max(Console().width, _WIDE)), report)
    keep(report, places.lines, command=command, **about)
    draw([lines(report.section, places.lines)[-1]], places.pictures)
    write([report.section], places)


def write(sections: Iterable[str], places: Places = REPOSITORY) -> None:
    """Write stored sections into the page of results, their long tables, and the page of performance."""
    places.results.parent.mkdir(parents=True, exist_ok=True)
    page = places.results.read_text(encoding="utf-8") if places.results.exists() else _RESULTS
    for name in sections:
        runs = lines(name, places.lines)
        for file, each in _long_tables(runs[-1]):
            with (places.lines / file).open("w", encoding="utf-8", newline="") as out:
                csv.writer(out, lineterminator="\n").writerows([each["head"], *each["rows"]])
        page = with_section(page, name, section(runs[-1], places))
    places.results.write_text(page, encoding="utf-8")
    newest = {name: found[-1] for name in ORDER if (found := lines(name, places.lines))}
    link = os.path.relpath(places.results, places.performance.parent)
    places.performance.write_text(performance(newest, link), encoding="utf-8")


def with_section(page: str, name: str, body: str) -> str:
    """Return the page with that section replaced or appended. Other sections stay unchanged."""
    head, *parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    bodies = {part.partition("\n")[0]: part.rstrip() + "\n" for part in parts}
    bodies[f"## {name}"] = f"## {name}\n\n{body.rstrip()}\n"
    return "\n".join([head.rstrip() + "\n", *bodies.values()])


def section(newest: Line, places: Places) -> str:
    """Return the section of one command: text, tables and charts of the newest run, and its date."""
    quick = [QUICK] if newest.get("quick") else []
    pictures = os.path.relpath(places.pictures, places.results.parent)
    charts = [f"![{chart['x']}]({pictures}/{chart['name']}.png)\n" for chart in newest["charts"]]
    parts = [f"`{newest['command']}`\n", newest["text"] + "\n", *quick, *_tables(newest), *charts, _made(newest)]
    return "\n".join(parts)


def _tables(line: Line) -> Iterator[str]:
    columns = {"name": "what", "value": "value"}
    if any(each["goal"] for each in line["figures"]):
        columns |= {"goal": "to reach", "reached": "reached"}
    if line["figures"]:
        yield table(list(columns.values()), [[each[name] for name in columns] for each in line["figures"]])
    for each in line["tables"]:
        if len(each["rows"]) <= LONG:
            yield table(each["head"], each["rows"])
    for file, each in _long_tables(line):
        yield f"[{len(each['rows'])} rows](results/{file}): {' · '.join(each['head'])}.\n"


def _long_tables(line: Line) -> Iterator[tuple[str, Line]]:
    for index, each in enumerate(line["tables"], 1):
        if len(each["rows"]) > LONG:
            yield f"{line['section']}-{index}.csv", each


def _made(newest: Line) -> str:
    gpu = f", {newest['gpu']}" if newest["gpu"] else ""
    machine = f"{newest['cores']} cores of {newest['cpu']}{gpu}, load {newest['load']} before"
    versions = f"torch {newest['torch']}, transformers {newest['transformers']}"
    return f"Measured {newest['date']}, commit {newest['commit']}, {machine}; {versions}.\n"
