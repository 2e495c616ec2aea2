"""`python -m benchmarks.paper`: repeat the paper's experiments, and write docs/paper.md with its pictures."""

import datetime
import os
import platform
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers.utils import logging

from benchmarks import beams, machine
from benchmarks.pair import Pair
from benchmarks.paper import measured, page

_DEMO = machine.ROOT / "models" / "demo"
_TEMPERATURES = (0.0, 1.0)
_GAMMAS = (7, 3)
"""Draft lengths of Figure 5."""
_TRACED = 40
_FULL = measured.Size(rows=32, tokens=160, asks=3, repeats=2)
_QUICK = measured.Size(rows=4, tokens=16, asks=1, repeats=1)
_BEAMS, _FEW_BEAMS = beams.Size(prompts=24, prompt=16, tokens=32), beams.Size(prompts=2, prompt=16, tokens=6)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Only show that it runs; needs --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for the page, in place of docs.")] = None,
    seed: Annotated[int, typer.Option(help="Of the texts that the target writes.")] = 0,
) -> None:
    """Measure on this machine, in minutes, and write the page."""
    if quick and out is None:
        raise typer.BadParameter("--quick writes figures that mean nothing: name a folder with --out")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    size, searches = (_QUICK, _FEW_BEAMS) if quick else (_FULL, _BEAMS)
    pair = Pair(_DEMO / "target", _DEMO / "drafter")
    found = {each: measured.approximations(pair, size, each, seed) for each in _TEMPERATURES}
    speeds = {each: measured.walltime(pair, size, each) for each in _TEMPERATURES}
    folder = (out or page.PAGE.parent).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    page.pictures(measured.traces(pair, _TRACED, _GAMMAS), speeds[0.0]["model"].c, _TRACED, folder / "paper")
    parts = {
        **page.closed_parts(),
        "conditions": _conditions(size, seed),
        "alpha": page.alphas(found),
        "lenience": page.leniences(found),
        "walltime": page.speeds(speeds),
        "beams": beams.render(list(beams.measure(pair, searches)), searches),
    }
    template = Path(__file__).with_name("paper.md").read_text(encoding="utf-8")
    page.write(template, parts, folder / page.PAGE.name)
    typer.echo(f"wrote {folder / page.PAGE.name}")


def _conditions(size: measured.Size, seed: int) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return (
        f"Measured {today} on {os.cpu_count()} CPU cores ({platform.machine()}), float32, one thread, seed {seed}: "
        f"α over {size.rows * size.tokens:,} tokens of the target's own text at each temperature; speeds after the "
        f"prompt in CPU time, {size.asks * size.repeats} pairs of runs of {size.tokens} tokens in turn, median and "
        f"middle half. "
        f"Load average at the end {os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    typer.run(main)
