"""RESULTS.md, with a section for every command, and docs/performance.md, made from the newest run of each section."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.machine import ROOT
from benchmarks.reports.plots import draw
from benchmarks.reports.results import Line, Report, keep, lines, show

_RESULTS = """\
# Results

Each section is written by the command it names and holds its newest run and a row of every run before; the whole of
each is a line in `results/`. [Performance](../docs/performance.md) puts them together.
"""
_PERFORMANCE = """\
# Performance

Written by `make bench`; `make bench ARGS=stack` measures one section again.

Absolute times wander on shared machines, so a figure is a ratio of runs made in turn in one session: the median of
the pairs, and the middle half of them in brackets. A peer is a process of its own. "HF" is `generate()` of
`transformers` on the same weights in float32, "assisted" its own speculative decoding with the same drafter: at its
defaults, with the threshold that adapts itself, or at five constant tokens. A process has one thread unless the row
says two: the stack keeps two cores busy, one with the target and one with the drafter, which is why HF is shown with
two as well. The stack is `specdec up --compile`: gateway, verifier, drafter and Redis as processes, called through
gRPC; every request has a `cache_salt` of its own, so nothing is remembered from one to the next. Our models are
compiled in process too, unless a row says otherwise, and `generate()` is as it comes. Output is greedy unless said.
"""
_QUICK = "**Made with `--quick`, which only shows that it runs: the figures mean nothing.**\n"
_WIDE = 150
"""Columns that the widest table needs."""
ORDER = (
    "engine", "stack", "prompt", "concurrency", "capacity", "grid", "grid_stack", "shared_device", "host_path",
    "controllers", "memory", "one_core", "passes", "peers", "pingpong", "rtt", "rules", "sources", "spec", "theory",
    "trees", "verdicts", "gpu_tests", "gpu", "gpu_host", "gpu_stack", "gpu_vllm", "gpu_processes",
)  # fmt: skip


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
    known = places.results.read_text(encoding="utf-8") if places.results.exists() else _RESULTS
    places.results.parent.mkdir(parents=True, exist_ok=True)
    places.results.write_text(with_section(known, report.section, _section(lines(report.section, places.lines))))
    if report.section in ORDER:
        newest = {name: found[-1] for name in ORDER if (found := lines(name, places.lines))}
        draw([newest[report.section]], places.pictures)
        places.performance.write_text(performance(newest, places.pictures.name), encoding="utf-8")


def with_section(page: str, name: str, body: str) -> str:
    """Return the page with that section replaced or appended. Other sections stay unchanged."""
    head, *parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    bodies = {part.partition("\n")[0]: part.rstrip() + "\n" for part in parts}
    bodies[f"## {name}"] = f"## {name}\n\n{body.rstrip()}\n"
    return "\n".join([head.rstrip() + "\n", *bodies.values()])


def performance(newest: Mapping[str, Line], pictures: str) -> str:
    """Return the page of the newest run of every section, with a verdict for each goal."""
    parts = [_PERFORMANCE]
    if any(line.get("quick") for line in newest.values()):
        parts.append(_QUICK)
    parts += ["## To reach, and reached\n", *_goals(newest)]
    for name, line in newest.items():
        charts = (f"![{chart['x']}]({pictures}/{chart['name']}.png)\n" for chart in line["charts"])
        parts += [f"## {name}\n", line["text"] + "\n", _made(line) + "\n", *_tables(line), *charts]
    return "\n".join(parts)


def _goals(newest: Mapping[str, Line]) -> Iterator[str]:
    rows = [
        (each["name"], each["goal"], each["value"], each["reached"], name)
        for name, line in newest.items()
        for each in line["figures"]
        if each["goal"]
    ]
    yield _markdown(("what", "to reach", "measured", "reached", "section"), rows)
    missing = [name for name in ORDER if name not in newest]
    if missing:
        yield f"Not measured yet: {', '.join(missing)}.\n"


def _section(runs: Sequence[Line]) -> str:
    newest = runs[-1]
    quick = [_QUICK] if newest.get("quick") else []
    rows = [(run["date"], run["commit"], _machine(run), _headline(run)) for run in runs]
    history = _markdown(("run of", "commit", "machine", "headline"), rows)
    return "\n".join([f"`{newest['command']}`\n", newest["text"] + "\n", *quick, *_tables(newest), history])


def _tables(line: Line) -> Iterator[str]:
    figures = [(each["name"], each["value"], each["goal"], each["reached"]) for each in line["figures"]]
    if figures:
        yield _markdown(("what", "value", "to reach", "reached"), figures)
    for table in line["tables"]:
        yield _markdown(table["head"], table["rows"])


def _markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    ruled = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in ruled) + "\n"


def _made(line: Line) -> str:
    versions = f"torch {line['torch']}, transformers {line['transformers']}, scikit-learn {line['scikit-learn']}"
    return f"{line['date']}, commit {line['commit']}, {_machine(line)}; {versions}."


def _machine(line: Line) -> str:
    gpu = f", {line['gpu']}" if line["gpu"] else ""
    return f"{line['cores']} cores of {line['cpu']}{gpu}, load {line['load']} before"


def _headline(line: Line) -> str:
    figures = [each for each in line["figures"] if each["goal"]] or line["figures"][:3]
    return "; ".join(f"{each['name']} {each['value']}" for each in figures)
