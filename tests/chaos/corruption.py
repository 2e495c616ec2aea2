"""`python -m tests.chaos.corruption`: flip bytes on each hop between processes, and count the tokens that are wrong."""

import argparse
import asyncio
import itertools
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import cluster
from tests.chaos.checker import Findings, check
from tests.chaos.client import Client
from tests.chaos.cluster import Cluster, Setup
from tests.chaos.observer import stored_logs
from tests.chaos.proxy import Flips
from tests.chaos.run import Load, undisturbed
from tests.chaos.scenarios import PROMPT
from tests.chaos.stream import Answer, Scenario, Stream
from tests.support.tiny_models import make_tiny_model

HOPS = {"redis": "gateway to Redis", "verifier": "gateway to verifier", "drafter": "verifier to drafter"}
"""For each role whose connections are corrupted, the name of the hop."""
_TRIES = 12
"""Lost turns allowed for each changed byte before they count as a loop."""


@dataclass(frozen=True, slots=True)
class Corrupted:
    """Result for one hop."""

    hop: str
    flips: int
    """Number of changed bytes."""
    tokens: int
    """Tokens that clients received meanwhile."""
    findings: Findings
    turns_lost: int
    """Number of `turn_lost` records of the gateways."""
    interruptions: Counter[str]
    """Reasons why client connections ended before their answers did."""

    @property
    def faults(self) -> list[str]:
        """Return the faults found, or an empty list."""
        wrong = [f"wrong tokens: {self.findings}"] if self.findings else []
        looped = [f"lost {self.turns_lost} turns"] if self.turns_lost > _TRIES * self.flips else []
        return wrong + looped + [why for why in self.interruptions if "internal" in why.lower()]

    def __str__(self) -> str:
        return (
            f"{self.hop}: {self.flips} bytes changed, {self.tokens} tokens, {self.findings}, "
            f"{self.turns_lost} turns lost, interruptions {dict(self.interruptions)}"
        )


async def corruption(
    setup: Setup, load: Load, hops: Sequence[str], tokens: int, every: float, seed: int, folder: Path
) -> AsyncGenerator[Corrupted]:
    """Corrupt one hop after another of a new system, and yield the result of each.

    Args:
        setup: the processes to start.
        load: the requests of the clients.
        hops: keys of HOPS.
        tokens: number of tokens that clients receive over each hop.
        every: one byte of this many is changed, on average.
        seed: seed of requests and flips.
        folder: for logs and sockets.
    """
    async with cluster.running(setup, folder) as running:
        asked, expected = await undisturbed(running, setup.target, load, seed)
        for hop in hops:
            yield await _spoiled(running, hop, (asked, expected), load.clients, tokens, every, seed)


async def _spoiled(
    running: Cluster,
    hop: str,
    truth: tuple[Sequence[Scenario], Mapping[str, Answer]],
    clients: int,
    tokens: int,
    every: float,
    seed: int,
) -> Corrupted:
    asked, expected = truth
    before = _turns_lost(running)
    flips = Flips(every, seed)
    for member in running.of(hop):
        member.proxy.spoil(flips)
    streams: list[Stream] = []

    async def ask(number: int) -> None:
        client = Client(number, running.urls)
        for turn in itertools.count(number, 2):
            if sum(len(stream.tokens) for stream in streams) >= tokens:
                return
            streams.append(await client.ask(asked[turn % len(asked)]))

    await asyncio.gather(*(ask(number) for number in range(clients)))
    for member in running.of(hop):
        member.proxy.spoil()
    await asyncio.gather(*(member.up() for member in running.members))
    logs = await stored_logs(running.redis_url, dict.fromkeys(name for each in streams for name in each.shown), PROMPT)
    findings = sum((found for _, found in check(streams, expected, logs)), Findings())
    total = sum(len(stream.tokens) for stream in streams)
    reasons = Counter(why for stream in streams for why in stream.interruptions)
    return Corrupted(HOPS[hop], flips.count, total, findings, _turns_lost(running) - before, reasons)


def _turns_lost(running: Cluster) -> int:
    """Return the number of `turn_lost` records of the gateways so far."""
    return sum(member.command.log.read_text().count("turn_lost") for member in running.of("gateway"))


def main(write: Callable[[str], object] = sys.stdout.write) -> int:
    """Run and report. Return 1 if anything was wrong."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="specdec-chaos-"))
    write(f"seed {options.seed}, logs in {folder}\n")
    target = make_tiny_model(folder / "target", "llama", seed=0, context=1024)
    drafter = make_tiny_model(folder / "drafter", "llama", seed=0, context=1024, noise=0.02)
    faults = asyncio.run(_report(Setup(target, drafter), options, folder, write))
    if not faults:
        shutil.rmtree(folder)
    return int(faults > 0)


async def _report(setup: Setup, options: argparse.Namespace, folder: Path, write: Callable[[str], object]) -> int:
    """Write a line for each hop and one for each fault. Return the number of faults."""
    load = Load(options.clients, scenarios=6, tokens=options.length)
    faults = 0
    limits = (options.hops, options.tokens, options.every, options.seed)
    async with aclosing(corruption(setup, load, *limits, folder)) as hops:
        async for found in hops:
            write(f"{found}\n")
            sys.stdout.flush()
            for fault in found.faults:
                faults += 1
                write(f"WRONG {found.hop}: {fault}\n")
    return faults


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000, help="received over each hop")
    parser.add_argument("--every", type=float, default=20_000, help="one byte of so many is changed")
    parser.add_argument(
        "--hops", nargs="*", default=list(HOPS), choices=list(HOPS), help="whose connections are spoiled"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(31), help="of requests and flips")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--length", type=int, default=400, help="of one answer, in tokens")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
