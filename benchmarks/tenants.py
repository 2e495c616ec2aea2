"""`python -m benchmarks.tenants`: effect of one tenant's flood on another tenant with its own API key.

`specdec up` runs as for users. The quiet tenant requests one completion after another. Three phases run in turn,
so that a slow moment of the machine affects all of them: the quiet tenant is alone; the loud tenant sends what its key
allows; the loud tenant sends many times that, from its own process. The cost of the flood is the difference between the
third and the second phase.
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
from benchmarks.pair import Pair
from benchmarks.reports.pages import add_out, publish
from benchmarks.reports.results import Figure, Goal, Report, Table
from benchmarks.reports.statistics import percentile
from benchmarks.systems.stack import running
from benchmarks.tenants_flood import GOOD, TOO_MANY, Caller

_TEXT = """\
A quiet tenant asks for one completion after another. It is alone; or beside a loud tenant that asks for what its key
allows, {requests} requests a minute and {concurrency} at once; or beside a flood of {rate:g} a second of that tenant.
Phases of {each} requests take turns, {phases} of each. Gateway, verifier, drafter, store and both clients share the
cores of this machine."""
_DEMO = machine.ROOT / "models" / "demo"
_QUIET, _LOUD = "quiet-key", "loud-key"
_GOAL = Goal(1.2, at_most=True)
ALONE, ALLOWED, FLOOD = "alone", "beside what the key allows", "beside the flood"


@dataclass(frozen=True, slots=True)
class Phase:
    """The quiet tenant's requests of one phase, and the answers to the loud tenant meanwhile."""

    seconds: Sequence[float]
    """Seconds from each request to the end of its answer."""
    statuses: Counter[int]
    """Status codes of the loud tenant's answers. Empty without it."""


@dataclass(frozen=True, slots=True)
class Loudness:
    """Requests of the loud tenant."""

    rate: float
    """Requests a second."""
    connections: int
    awaited: int
    """The status after which a phase begins."""


@contextmanager
def beside(address: str, loudness: Loudness) -> Iterator[Counter[int]]:
    """Run the loud tenant inside the context. The value holds the statuses of its requests afterwards."""
    asked = [loudness.rate, loudness.connections, loudness.awaited]
    command = [sys.executable, "-m", "benchmarks.tenants_flood", address, _LOUD, *map(str, asked)]
    statuses: Counter[int] = Counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=machine.ROOT
    ) as process:
        if not (process.stdin and process.stdout and process.stdout.readline()):
            raise RuntimeError(f"the loud tenant never got status {loudness.awaited}")
        try:
            yield statuses
        finally:
            process.stdin.close()
            told: dict[str, int] = json.loads(process.stdout.readline())
            statuses.update({int(status): count for status, count in told.items()})


def phase(address: str, count: int, loudness: Loudness | None) -> Phase:
    """Measure the quiet tenant's requests, with the loud tenant or alone."""
    if loudness is None:
        return Phase(quiet(address, count), Counter())
    with beside(address, loudness) as statuses:
        seconds = quiet(address, count)
    return Phase(seconds, statuses)


def quiet(address: str, count: int) -> list[float]:
    """Return the seconds of `count` requests, one after another. Raises RuntimeError if one is refused."""
    caller, seconds = Caller(address, _QUIET), []
    for _ in range(count):
        began = time.perf_counter()
        if (status := caller.ask()) != 200:
            raise RuntimeError(f"the quiet tenant got status {status}")
        seconds.append(time.perf_counter() - began)
    return seconds


def key_file(folder: Path, options: argparse.Namespace) -> Path:
    """Write the keys of both tenants."""
    limits = f"requests={options.limit} concurrency={options.concurrency}"
    keys = {"quiet": (_QUIET, ""), "loud": (_LOUD, limits)}
    lines = [f"{name}: sha256:{hashlib.sha256(key.encode()).hexdigest()} {told}" for name, (key, told) in keys.items()]
    path = folder / "keys"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def measure(options: argparse.Namespace) -> dict[str, list[Phase]]:
    """Return the phases of each kind."""
    kinds = {
        ALONE: None,
        ALLOWED: Loudness(options.limit / 60, 1, GOOD),
        FLOOD: Loudness(options.rate, options.connections, TOO_MANY),
    }
    with TemporaryDirectory() as folder:
        keys = key_file(Path(folder), options)
        with running(Pair(_DEMO / "target", _DEMO / "drafter"), "--api-keys", str(keys)) as stack:
            address = stack.http["gateway"]
            quiet(address, options.requests)
            phases: dict[str, list[Phase]] = {name: [] for name in kinds}
            for _ in range(options.phases):
                for name, loudness in kinds.items():
                    phases[name].append(phase(address, options.requests, loudness))
    return phases


def report(phases: dict[str, list[Phase]], options: argparse.Namespace) -> Report:
    """Return the times of the quiet tenant, and the status codes of the loud one."""
    times = {name: [each for one in of_kind for each in one.seconds] for name, of_kind in phases.items()}
    statuses = sum((each.statuses for each in phases[FLOOD]), Counter[int]())
    rows = [
        (name, str(len(each)), *(f"{1000 * percentile(each, share):.0f}" for share in (0.5, 0.9, 0.99)))
        for name, each in times.items()
    ]
    rise = percentile(times[FLOOD], 0.99) / percentile(times[ALLOWED], 0.99)
    figures = [
        Figure(f"quiet tenant's p99, {FLOOD} / {ALLOWED}", f"{rise:.2f}", str(_GOAL), _GOAL.verdict(rise)),
        *(
            Figure(f"quiet tenant's {name}, {kind} / {ALONE}", f"{_ratio(times[kind], times[ALONE], share):.2f}")
            for name, share in (("p50", 0.5), ("p99", 0.99))
            for kind in (ALLOWED, FLOOD)
        ),
        Figure("requests of the flood, refused with 429", f"{statuses[TOO_MANY] / max(1, statuses.total()):.0%}"),
    ]
    tables = [
        Table(("quiet tenant", "requests", "p50, ms", "p90, ms", "p99, ms"), rows),
        Table(("status of the flood", "answers"), [(str(status), str(count)) for status, count in statuses.items()]),
    ]
    told = {"requests": options.limit, "concurrency": options.concurrency, "rate": options.rate}
    return Report("tenants", _TEXT.format(**told, each=options.requests, phases=options.phases), figures, tables)


def _ratio(times: Sequence[float], others: Sequence[float], share: float) -> float:
    return percentile(times, share) / percentile(others, share)


def main() -> None:
    """Measure, print and store."""
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
