"""`python -m benchmarks.sessions`: latency of commits, with KV traffic and without, and memory of sessions.

The command starts its own servers on socket files. Compare latencies only between rows of one run. On a busy machine
they say little.
"""

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from benchmarks import machine
from benchmarks.reports.pages import add_out, publish
from benchmarks.reports.results import Figure, Report, Table
from gateway.store import lua
from gateway.store.redis_sessions import RedisSessionStore
from gateway.store.values import RoundCommit
from specdec.cli.local import valkey
from specdec.cli.local.processes import ChildCommand, Children

_TEXT = """\
What a commit costs in a Redis of its own, and beside keys and values in the same one or in another; and what a
session's tokens weigh. Latencies are for comparing the rows with each other."""
ROUND = (11, 12, 13)
"""Tokens of a round."""
WARM_UP = 0.1
"""Share of the commits that is not counted."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Commit latencies in one configuration, in milliseconds."""

    instances: int
    """Redis servers."""
    kv_mib: float
    """Size of the values that another process writes and reads meanwhile, or 0 for no such traffic."""
    commits: int
    p50: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Weight:
    """Redis memory of a session, by its number of output tokens."""

    tokens: int
    rounds: int
    bytes: int

    @property
    def per_token(self) -> float:
        """Bytes per token, compared with 4 for a bare id."""
        return self.bytes / self.tokens


class Servers:
    """A session store and a KV store, each with its usual configuration."""

    def __init__(self, folder: Path, children: Children) -> None:
        """Start both servers and wait until they answer."""
        binary = valkey.resolve()
        self.sessions, self.kv = (self._start(binary, folder / name, children) for name in ("s", "k"))

    def _start(self, binary: valkey.Binary, folder: Path, children: Children) -> str:
        folder.mkdir()
        server = valkey.embed(binary, folder)
        if folder.name == "k":
            config = Path(server.argv[1])
            lines = config.read_text().replace("appendonly yes", "appendonly no").replace("noeviction", "allkeys-lru")
            config.write_text(lines + "maxmemory 256mb\n")
        children.start(ChildCommand(folder.name, "redis", server.argv, folder / "log", ""), os.environ)
        deadline = time.monotonic() + 30
        while not valkey.answers(server.url):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server in {folder} does not answer")
            time.sleep(0.02)
        return server.url


@contextmanager
def servers() -> Iterator[tuple[Servers, Children, Path]]:
    """Run both servers until the context ends."""
    with tempfile.TemporaryDirectory(prefix="specdec-") as name, Children(grace=3) as children:
        yield Servers(Path(name), children), children, Path(name)


async def latency(url: str, instances: int, kv_mib: float, commits: int, pause: float) -> Latency:
    """Commit round after round of several sessions, `pause` seconds apart in each, and time every commit."""
    store = RedisSessionStore.at(url)
    try:
        async with asyncio.TaskGroup() as writers:
            tasks = [writers.create_task(_write(store, commits // 8, pause)) for _ in range(8)]
    finally:
        await store.close()
    times = sorted(seconds for task in tasks for seconds in task.result()[round(WARM_UP * commits / 8) :])
    return Latency(
        instances,
        kv_mib,
        len(times),
        round(1000 * times[len(times) // 2], 3),
        round(1000 * times[99 * len(times) // 100], 3),
        round(1000 * times[-1], 3),
    )


async def _write(store: RedisSessionStore, commits: int, pause: float) -> list[float]:
    session = secrets.token_hex(16)
    await store.open(session, session, [1, 2, 3], b"{}", "fp", "t")
    lease = await store.acquire(session, "benchmark")
    times = []
    for index in range(commits):
        await asyncio.sleep(pause)
        began = time.perf_counter()
        await store.commit([RoundCommit(session, lease.epoch, 3 + index * len(ROUND), ROUND)])
        times.append(time.perf_counter() - began)
    return times


async def weight(url: str, tokens: int) -> Weight:
    """Write a session of that many output tokens, and query the memory of its keys from the server."""
    store, redis = RedisSessionStore.at(url), Redis.from_url(url)
    session, rounds = secrets.token_hex(16), tokens // len(ROUND)
    try:
        await store.open(session, session, [1, 2, 3], b"{}", "fp", "t")
        lease = await store.acquire(session, "benchmark")
        for index in range(rounds):
            await store.commit([RoundCommit(session, lease.epoch, 3 + index * len(ROUND), ROUND)])
        usage = [await redis.memory_usage(key, samples=0) or 0 for key in lua.keys(session)]
    finally:
        await store.close()
        await redis.aclose()
    return Weight(rounds * len(ROUND), rounds, sum(usage))


def measure(options: argparse.Namespace) -> tuple[list[Latency], list[Weight]]:
    """Return every row."""
    rows = [_beside(options, 1, 0.0)]
    for mib in options.kv_mib:
        rows += [_beside(options, instances, mib) for instances in (1, 2)]
    with servers() as (started, _, _):
        weights = [asyncio.run(weight(started.sessions, tokens)) for tokens in options.tokens]
    return rows, weights


def _beside(options: argparse.Namespace, instances: int, mib: float) -> Latency:
    """Measure one row on new servers, so that no data of the previous row remains."""
    with servers() as (started, children, folder):
        if mib:
            busy = started.sessions if instances == 1 else started.kv
            argv = (sys.executable, "-m", "benchmarks.sessions_traffic", busy, str(round(mib * 2**20)))
            children.start(ChildCommand("traffic", "traffic", argv, folder / "traffic.log", ""), os.environ)
            time.sleep(1.0)
        return asyncio.run(latency(started.sessions, instances, mib, options.commits, options.pause))


def report(rows: Sequence[Latency], weights: Sequence[Weight]) -> Report:
    """Return the times of commits, and the memory of sessions."""
    commits = [
        (
            str(row.instances),
            f"{row.kv_mib:g} MiB" if row.kv_mib else "none",
            str(row.commits),
            *(f"{each:.2f}" for each in (row.p50, row.p99, row.longest)),
        )
        for row in rows
    ]
    sizes = [(str(each.tokens), str(each.rounds), str(each.bytes), f"{each.per_token:.1f}") for each in weights]
    figures = [Figure(f"commit, p99 ms, {count} servers, KV beside: {kv}", p99) for count, kv, _, _, p99, _ in commits]
    tables = [
        Table(("Redis servers", "KV values beside", "commits", "p50, ms", "p99, ms", "longest, ms"), commits),
        Table(("output tokens", "rounds", "bytes in Redis", "bytes a token"), sizes),
    ]
    return Report("sessions", _TEXT, figures, tables)


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--commits", type=int, default=8000, help="of each row, over 8 sessions")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between the commits of a session")
    parser.add_argument("--kv-mib", type=float, nargs="*", default=[3.0, 32.0], help="sizes of KV values")
    parser.add_argument("--tokens", type=int, nargs="*", default=[255, 1023, 4095], help="lengths of sessions to weigh")
    add_out(parser)
    options = parser.parse_args()
    load = machine.load()
    publish(report(*measure(options)), "python -m benchmarks.sessions", options.out, load=load)


if __name__ == "__main__":
    main()
