"""`python -m benchmarks [SECTION ...]`: measure, show, keep, and write the page and the pictures."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import results
from benchmarks.machine import ROOT
from benchmarks.pair import Pair
from benchmarks.plots import draw
from benchmarks.sections import SECTIONS
from benchmarks.sections.scale import Scale, quick
from specdec.errors import SpecdecError

_DEMO = ROOT / "models" / "demo"


def main(  # noqa: PLR0913 - a command's options are its parameters
    sections: Annotated[
        list[str] | None, typer.Argument(help=f"Some of: {', '.join(SECTIONS)}; all when none.")
    ] = None,
    target: Annotated[Path, typer.Option(help="Large model's folder.")] = _DEMO / "target",
    drafter: Annotated[Path, typer.Option(help="Small model's folder.")] = _DEMO / "drafter",
    fast: Annotated[bool, typer.Option("--quick", help="Only show that it runs; the figures mean nothing.")] = False,
    out: Annotated[Path, typer.Option(help="Where result lines are appended.")] = results.FOLDER,
    page: Annotated[Path, typer.Option(help="The page of the newest results.")] = results.PAGE,
    pictures: Annotated[Path, typer.Option(help="Where curves are drawn.")] = ROOT / "docs" / "benchmarks",
) -> None:
    """Measure on this machine; each section is kept as soon as it is done."""
    console = Console()
    pair = Pair(target.resolve(), drafter.resolve())
    scale = quick(pair) if fast else Scale(pair)
    for name in sections or SECTIONS:
        if name not in SECTIONS:
            raise typer.BadParameter(f"no section {name!r}; there are {', '.join(SECTIONS)}")
        try:
            report = SECTIONS[name](scale)
        except SpecdecError as error:
            console.print(f"{name}: {error.message}", markup=False)
            raise typer.Exit(1) from error
        results.show(console, report)
        results.keep(report, out)
        results.write_page(out, page)
    draw(pictures, out)


if __name__ == "__main__":
    typer.run(main)
