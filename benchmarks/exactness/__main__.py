"""`make exactness`: measure the demo pair and write docs/exactness.md. Measurements before a kill are kept."""

import argparse
import datetime
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.exactness import page
from benchmarks.exactness.pair import Pair, prompts
from benchmarks.exactness.rounds import Measured, Setting, measure
from benchmarks.exactness.served import Speed, compare, services
from benchmarks.exactness.state import Cells
from specdec.rules.speculation import Mode

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "exactness.md"
STATE = ROOT / "build" / "exactness.json"
TEMPERATURES = (0.0, 0.7, 1.0)
GAMMA = 4
GAMMAS = (1, 2, 4, 8)
LENIENCE = 0.5


@dataclass(frozen=True)
class Size:
    """Numbers of prompts, tokens and repeats to measure."""

    prompts: int
    length: int
    served_prompts: int
    served_length: int
    repeats: int


FULL = Size(prompts=24, length=128, served_prompts=3, served_length=160, repeats=5)
QUICK = Size(prompts=12, length=48, served_prompts=2, served_length=64, repeats=3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the missing cells, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="low statistics, to see that it works")
    size = QUICK if parser.parse_args(arguments).quick else FULL
    torch.set_num_threads(1)
    cells = Cells(STATE, vars(size) | {"torch": torch.__version__})
    modes, lengths = _rounds(cells, size)
    speeds = _served(cells, size)
    PAGE.write_text(page.render(_conditions(size), modes, lengths, speeds), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")
    return 0


def settings(temperature: float) -> list[Setting]:
    """Return the modes of the table, the lossy one last."""
    exact = [Setting(mode, temperature, GAMMA) for mode in Mode if mode is not Mode.OFF]
    return [*exact, Setting(Mode.REJECTION, temperature, GAMMA, LENIENCE)]


def _rounds(cells: Cells, size: Size) -> tuple[dict[Setting, Measured], dict[Setting, Measured]]:
    wanted = [each for temperature in TEMPERATURES for each in settings(temperature)]
    lengths = [Setting(Mode.REJECTION, temperature, gamma) for temperature in TEMPERATURES for gamma in GAMMAS]
    missing = [each for each in dict.fromkeys([*wanted, *lengths]) if str(each) not in cells]
    if missing:
        pair, texts = Pair.load(), prompts(size.prompts)
        for each in missing:
            cells.put(str(each), [measure(pair, each, texts, size.length)])
    known = {each: cells.get(str(each), Measured)[0] for each in [*wanted, *lengths]}
    return {each: known[each] for each in wanted}, {each: known[each] for each in lengths}


def _served(cells: Cells, size: Size) -> dict[tuple[float, Mode], Speed]:
    names = {temperature: f"served at {temperature}" for temperature in TEMPERATURES}
    missing = [temperature for temperature, name in names.items() if name not in cells]
    if missing:
        texts = prompts(size.served_prompts)
        with tempfile.TemporaryDirectory() as folder, services(Path(folder)) as at:
            for each in missing:
                cells.put(names[each], compare(at, each, GAMMA, texts, size.served_length, size.repeats))
    return {(each, speed.mode): speed for each, name in names.items() for speed in cells.get(name, _speed)}


def _speed(mode: str, **numbers: float) -> Speed:
    return Speed(Mode(mode), **numbers)


def _conditions(size: Size) -> page.Conditions:
    return page.Conditions(
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        machine=f"{os.cpu_count()} CPU cores ({platform.machine()}), no GPU, float32, one thread a process",
        load=os.getloadavg()[0],
        prompts=size.prompts,
        length=size.length,
        served=size.served_prompts * size.served_length * size.repeats,
        gamma=GAMMA,
    )


if __name__ == "__main__":
    sys.exit(main())
