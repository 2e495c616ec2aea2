"""`python -m benchmarks.tenants`: what one tenant's flood costs another, who has an API key of another tenant.

`specdec up` runs as for users. The quiet tenant asks for one completion after another; the loud one sends many times
what its key may ask for, from a process of its own. Phases with the flood and without take turns, so that a slow moment
of the machine meets both.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine
from benchmarks.pages import add_out, publish
from benchmarks.pair import Pair
from benchmarks.results import Figure, Goal, Report, Table
from benchmarks.stack import running
from benchmarks.statistics import percentile
from benchmarks.tenants_flood import TOO_MANY, Caller

_TEXT = """\
A quiet tenant asks for one completion after another; a loud one, whose key may ask for {requests} requests a minute and
{concurrency} at once, sends {rate:g} a second. Phases of {each} requests with the flood and without take turns,
{phases} of each. Gateway, verifier, drafter, store and both clients share the cores of this machine."""
_DEMO = machine.ROOT / "models" / "demo"
_QUIET, _LOUD = "quiet-key", "loud-key"
_GOAL = Goal(1.2, at_most=True)


@dataclass(frozen=True, slots=True)
class Phase:
    """The quiet tenant's requests of one phase, and the answers to the flood meanwhile."""

    seconds: Sequence[float]
    """From each request to the end of its answer."""
    statuses: Counter[int]
    """Of the flood; empty without one."""


@contextmanager
def flooded(address: str, options: argparse.Namespace) -> Iterator[Counter[int]]:
    """A flood that is over its limits inside the context; the value has its statuses afterwards."""
    command = [sys.executable, "-m", "benchmarks.tenants_flood", address, _LOUD, str(options.rate)]
    statuses: Counter[int] = Counter()
    with subprocess.Popen(
        [*command, str(options.connections)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=machine.ROOT
    ) as process:
        if not (process.stdin and process.stdout and process.stdout.readline()):
            raise RuntimeError("the flood ended before it was refused")
        try:
            yield statuses
        finally:
            process.stdin.close()
            told: dict[str, int] = json.loads(process.stdout.readline())
            statuses.update({int(status): count for status, count in told.items()})


def phase(address: str, options: argparse.Namespace, *, loud: bool) -> Phase:
    """Measure the quiet tenant's requests, beside the flood or alone."""
    if loud:
        with flooded(address, options) as statuses:
            seconds = quiet(address, options.requests)
        return Phase(seconds, statuses)
    return Phase(quiet(address, options.requests), Counter())


def quiet(address: str, count: int) -> list[float]:
    """The seconds of so many requests, one after another; raises RuntimeError when one is refused."""
    caller, seconds = Caller(address, _QUIET), []
    for _ in range(count):
        began = time.perf_counter()
        if (status := caller.ask()) != 200:
            raise RuntimeError(f"the quiet tenant got status {status}")
        seconds.append(time.perf_counter() - began)
    return seconds


def key_file(folder: Path, options: argparse.Namespace) -> Path:
    """The keys of both tenants."""
    limits = f"requests={options.limit} concurrency={options.concurrency}"
    keys = {"quiet": (_QUIET, ""), "loud": (_LOUD, limits)}
    lines = [f"{name}: sha256:{hashlib.sha256(key.encode()).hexdigest()} {told}" for name, (key, told) in keys.items()]
    path = folder / "keys"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def measure(options: argparse.Namespace) -> list[tuple[Phase, Phase]]:
    """Pairs of phases: alone, and beside the flood."""
    with TemporaryDirectory() as folder:
        keys = key_file(Path(folder), options)
        with running(Pair(_DEMO / "target", _DEMO / "drafter"), "--api-keys", str(keys)) as stack:
            address = stack.http["gateway"]
            quiet(address, options.requests)
            return [
                (phase(address, options, loud=False), phase(address, options, loud=True)) for _ in range(options.phases)
            ]


def report(pairs: Sequence[tuple[Phase, Phase]], options: argparse.Namespace) -> Report:
    """The times of the quiet tenant, and what the loud one was told."""
    alone, beside = ([each for pair in pairs for each in pair[side].seconds] for side in (0, 1))
    statuses = sum((pair[1].statuses for pair in pairs), Counter[int]())
    rows = [
        (name, str(len(times)), *(f"{1000 * percentile(times, share):.0f}" for share in (0.5, 0.9, 0.99)))
        for name, times in (("alone", alone), ("beside the flood", beside))
    ]
    rise = percentile(beside, 0.99) / percentile(alone, 0.99)
    refused = statuses[TOO_MANY] / max(1, statuses.total())
    figures = [
        Figure("quiet tenant's p99, beside the flood / alone", f"{rise:.2f}", str(_GOAL), _GOAL.verdict(rise)),
        Figure(
            "quiet tenant's p50, beside the flood / alone", f"{percentile(beside, 0.5) / percentile(alone, 0.5):.2f}"
        ),
        Figure("loud tenant's requests, refused with 429", f"{refused:.0%}"),
    ]
    tables = [
        Table(("quiet tenant", "requests", "p50, ms", "p90, ms", "p99, ms"), rows),
        Table(("status of the flood", "answers"), [(str(status), str(count)) for status, count in statuses.items()]),
    ]
    told = {"requests": options.limit, "concurrency": options.concurrency, "rate": options.rate}
    return Report("tenants", _TEXT.format(**told, each=options.requests, phases=options.phases), figures, tables)


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--requests", type=int, default=100, help="of the quiet tenant in each phase")
    parser.add_argument("--phases", type=int, default=5, help="of each kind")
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second of the loud tenant")
    parser.add_argument("--connections", type=int, default=8, help="of the loud tenant")
    parser.add_argument(
        "--limit", type=int, default=30, help="requests a minute that the loud tenant's key may ask for"
    )
    parser.add_argument("--concurrency", type=int, default=1, help="requests at once that it may ask for")
    add_out(parser)
    options = parser.parse_args()
    load = machine.load()
    publish(report(measure(options), options), "python -m benchmarks.tenants", options.out, load=load)


if __name__ == "__main__":
    main()
