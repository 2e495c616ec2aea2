"""`python -m benchmarks [SECTION ...]`: measure, print and store results, and write the pages and pictures."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import machine
from benchmarks.pair import Pair
from benchmarks.reports.pages import REPOSITORY, Places, publish
from benchmarks.reports.results import lines
from benchmarks.sections import SECTIONS
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale, quick
from specdec.errors import SpecdecError

_DEMO = machine.ROOT / "models" / "demo"
_TRIAL = machine.ROOT / "build" / "benchmarks"


def main(  # noqa: PLR0913 - a command's options are its parameters
    sections: Annotated[
        list[str] | None, typer.Argument(help=f"Some of: {', '.join(SECTIONS)}; all when none.")
    ] = None,
    target: Annotated[Path, typer.Option(help="Large model's folder.")] = _DEMO / "target",
    drafter: Annotated[Path, typer.Option(help="Small model's folder.")] = _DEMO / "drafter",
    fast: Annotated[bool, typer.Option("--quick", help="Only show that it runs; the figures mean nothing.")] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Leave out what was measured at this commit: sections, and parts of grid, capacity and chat.",
        ),
    ] = False,
    only: Annotated[
        str, typer.Option(help='Measure only the parts of chat whose name contains this, as "T=0, 1 streams".')
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="A folder for all that is written, in place of the repository's own places.")
    ] = None,
) -> None:
    """Measure on this machine. Each section is stored as soon as it is done."""
    unknown = set(sections or ()) - set(SECTIONS)
    if unknown:
        raise typer.BadParameter(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    folder = out or (_TRIAL if fast else None)
    places = Places.below(folder.resolve()) if folder else REPOSITORY
    pair = Pair(target.resolve(), drafter.resolve())
    wanted = [name for name in sections or SECTIONS if not (resume and _measured(name, places))]
    load, failed = machine.load(), list[str]()
    with Lab(replace(quick(pair) if fast else Scale(pair), resume=resume, only=only)) as lab:
        for name in wanted:
            started = time.monotonic()
            try:
                report = SECTIONS[name](lab)
            except SpecdecError as error:
                sys.stderr.write(f"{name}: {error.message}\n")
                failed.append(name)
            else:
                seconds = round(time.monotonic() - started)
                publish(report, f"python -m benchmarks {name}", places, load=load, quick=fast, seconds=seconds)
    if failed:
        raise typer.Exit(1)


def _measured(section: str, places: Places) -> bool:
    newest = lines(section, places.lines)[-1:]
    return bool(newest) and newest[0]["commit"] == machine.commit() and not newest[0]["quick"]


if __name__ == "__main__":
    typer.run(main)
