"""`python -m benchmarks.gpu_all [PHASE ...]`: all GPU measurements, in phases in order of value.

Each phase runs in its own process, which frees the device at its end, and each result is stored at once. Nothing is
downloaded: models are made from their shapes, or from those of the repository.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer

from benchmarks import machine
from benchmarks.gpu.phase import PHASES
from benchmarks.gpu.setup import Device, Setup, Shape
from benchmarks.reports.pages import REPOSITORY, Places
from benchmarks.reports.results import lines
from specdec.cli.local import child_process

_TRIAL = machine.ROOT / "build" / "benchmarks" / "gpu"
_MINUTES = 9.0


def main(  # noqa: PLR0913 - one for each option
    phases: Annotated[list[str] | None, typer.Argument(help=f"Some of: {', '.join(PHASES)}; all when none.")] = None,
    shape: Annotated[Shape, typer.Option(help="Of the models.")] = "8b",
    device: Annotated[Device, typer.Option(help="Where to run.")] = "cuda",
    fast: Annotated[bool, typer.Option("--quick", help="Only show that it runs; the figures mean nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Leave out what was measured at this commit.")] = False,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Our models, as `model.compile`.")] = True,
    minutes: Annotated[float, typer.Option(help="Within which all phases end or are stopped.")] = _MINUTES,
    folder: Annotated[Path | None, typer.Option(help="Where the models are for the time, 19 GB.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for all that is written, in place of the repository's own places.")
    ] = None,
) -> None:
    """Measure on one GPU. Results other than of shape 8b on a GPU go to build/benchmarks/gpu."""
    unknown = set(phases or ()) - set(PHASES)
    if unknown:
        raise typer.BadParameter(f"no phase {', '.join(sorted(unknown))}; there are {', '.join(PHASES)}")
    if device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("error: no GPU here: run it on a machine that has one, or try --device cpu --shape tiny\n")
        raise typer.Exit(1)
    real = shape == "8b" and device == "cuda" and not fast
    kept = out or (None if real else _TRIAL)
    places = Places.below(kept.resolve()) if kept else REPOSITORY
    wanted = [name for name in phases or PHASES if not (resume and _measured(name, places, quick=fast))]
    with TemporaryDirectory(dir=folder) as models:
        setup = Setup(shape, device, fast, resume, compiled and not fast, models)
        failed = list(_run(wanted, setup, "" if kept is None else str(kept.resolve()), 60.0 * minutes))
    if failed:
        sys.stderr.write(f"not measured: {', '.join(failed)}\n")
        raise typer.Exit(1)


def _measured(name: str, places: Places, *, quick: bool) -> bool:
    """Whether the newest run of each section of the phase has this commit and kind."""
    newest = [lines(section, places.lines)[-1:] for section in PHASES[name].sections]
    return all(found and found[0]["commit"] == machine.commit() and found[0]["quick"] == quick for found in newest)


def _run(wanted: Sequence[str], setup: Setup, out: str, seconds: float) -> Iterator[str]:
    """Run the phases within `seconds`. Yield the names of those that failed or were stopped."""
    ends, share = time.monotonic() + seconds, seconds / (60.0 * _MINUTES)
    for name in wanted:
        limit = max(0.0, min(PHASES[name].seconds * share, ends - time.monotonic()))
        command = [sys.executable, "-m", "benchmarks.gpu.phase", name, json.dumps(asdict(setup)), out]
        began = time.monotonic()
        try:
            status = subprocess.run(
                child_process.tied(*command), cwd=machine.ROOT, timeout=limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = 1
            sys.stderr.write(f"gpu: {name} was stopped after {limit:.0f} s\n")
        sys.stderr.write(f"gpu: {name} took {time.monotonic() - began:.0f} s\n")
        if status:
            yield name


if __name__ == "__main__":
    typer.run(main)
