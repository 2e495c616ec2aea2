"""`python -m tests.chaos.nightly`: change bytes on every hop, then inject faults, until enough tokens were checked."""

import argparse
import asyncio
import itertools
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.chaos.cluster import Setup
from tests.chaos.corruption import HOPS, corruption
from tests.chaos.faults import schedule
from tests.chaos.run import Load, chaos
from tests.support.tiny_models import make_tiny_model

_FAULT_EVERY = 4.0
"""Mean seconds between two faults."""
_BYTE_EVERY = 20_000
"""One byte of this many is changed, on average."""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one run."""

    name: str
    seed: int
    tokens: int
    """Number of tokens that clients received, each compared with an undisturbed answer."""
    faults: list[str]
    """Faults found."""


@dataclass(frozen=True, slots=True)
class Night:
    """Parameters of a night of runs."""

    tokens: int
    seconds: float
    """Seconds since the beginning after which no run of chaos begins."""
    each: float
    """Duration of one run of chaos, in seconds."""
    seed: int
    clients: int
    length: int
    """Number of tokens in one answer."""
    folder: Path


async def night(setup: Setup, plan: Night) -> AsyncGenerator[Run]:
    """Yield every run of a night as it ends: a third of the tokens with changed bytes, the others with faults."""
    began, checked = time.monotonic(), 0
    async with aclosing(_corrupted(setup, plan)) as runs:
        async for run in runs:
            checked += run.tokens
            yield run
    for number in itertools.count(1):
        if checked >= plan.tokens or time.monotonic() > began + plan.seconds:
            return
        run = await _disturbed(setup, plan, number)
        checked += run.tokens
        yield run


async def _corrupted(setup: Setup, plan: Night) -> AsyncGenerator[Run]:
    folder = _folder(plan, "corruption")
    load = Load(plan.clients, scenarios=6, tokens=plan.length)
    each = plan.tokens // 3 // len(HOPS)
    async with aclosing(corruption(setup, load, list(HOPS), each, _BYTE_EVERY, plan.seed, folder)) as hops:
        async for found in hops:
            yield Run(f"changed bytes, {found.hop}", plan.seed, found.tokens, found.faults)


async def _disturbed(setup: Setup, plan: Night, number: int) -> Run:
    """Do one run of chaos, with its own seed and folder."""
    seed = plan.seed + number
    load = Load(plan.clients, scenarios=12, tokens=plan.length)
    faults = tuple(schedule(seed, plan.each, _FAULT_EVERY))
    folder = _folder(plan, f"chaos-{number}")
    report = await chaos(setup, load, faults, seed, folder, lambda _: None)
    wrong = [f"{stream.scenario} {found} {stream.shown}" for stream, found in report.bad]
    return Run(f"chaos {number}", seed, report.tokens, wrong)


def _folder(plan: Night, name: str) -> Path:
    folder = plan.folder / name
    folder.mkdir()
    return folder


async def _report(setup: Setup, plan: Night, write: Callable[[str], object]) -> list[Run]:
    """Write a line for each run as it ends."""
    found = []
    async with aclosing(night(setup, plan)) as runs:
        async for run in runs:
            found.append(run)
            write(f"{run.name}: seed {run.seed}, {run.tokens} tokens, {len(run.faults)} faults\n")
            for fault in run.faults:
                write(f"WRONG {run.name}: {fault}\n")
            sys.stdout.flush()
    return found


def main(write: Callable[[str], object] = sys.stdout.write) -> int:
    """Run and report. Return 1 if anything was wrong, or if too few tokens were checked."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="specdec-night-"))
    write(f"seed {options.seed}, logs in {folder}\n")
    target = make_tiny_model(folder / "target", "llama", seed=0, context=1024)
    drafter = make_tiny_model(folder / "drafter", "llama", seed=0, context=1024, noise=0.02)
    limits = options.tokens, options.minutes * 60, options.each_seconds
    plan = Night(*limits, options.seed, options.clients, options.length, folder)
    runs = asyncio.run(_report(Setup(target, drafter), plan, write))
    checked, faults = sum(run.tokens for run in runs), sum(len(run.faults) for run in runs)
    write(f"{checked} of {options.tokens} tokens checked, {faults} faults\n")
    if options.json:
        options.json.write_text(json.dumps({"tokens": checked, "runs": [asdict(run) for run in runs]}, indent=2) + "\n")
    if not faults:
        shutil.rmtree(folder)
    return int(faults > 0 or checked < options.tokens)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000, help="to check at least")
    parser.add_argument("--minutes", type=float, default=180.0, help="after which no more runs begin")
    parser.add_argument("--each-seconds", type=float, default=300.0, help="of one run of chaos")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31), help="of faults, requests and flips")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--length", type=int, default=400, help="of one answer, in tokens")
    parser.add_argument("--json", type=Path, help="where to write the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
