"""One attack with a bystander, and a bystander alone.

`python -m tests.attacks.trial` runs all kinds in their large form, and with names of kinds only these.
"""

import asyncio
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tests.attacks.attacked_gateway import Target, attacked_gateway
from tests.attacks.bystander import bystander
from tests.attacks.kinds import KINDS, made_up_users

_LARGE = 8
"""Size of the large form."""
_SETTLE = 30.0
"""Seconds after a large attack in which memory is released."""
_MIB = 2**20
_APART = {made_up_users.__name__: "127.0.0.2"}
"""Address of the bystander, for kinds that share its own address fairly among all users named there."""


@dataclass(frozen=True)
class Waits:
    """Waiting times of a bystander, in seconds, and the answers to the attacker."""

    p95: float
    longest: float
    statuses: Sequence[int] = field(default=(), repr=False)


async def control(target: Target, seconds: float) -> Waits:
    """Run a bystander alone."""
    async with bystander(target.address) as seen:
        await asyncio.sleep(seconds)
    return _waits(seen.waits)


async def trial(target: Target, kind: str, size: int) -> Waits:
    """Run a bystander during an attack. A refused bystander ends with an error."""
    async with bystander(target.address, _APART.get(kind, "127.0.0.1")) as seen:
        host, port = target.grpc.split(":")
        attack = asyncio.get_running_loop().run_in_executor(
            target.attacker, KINDS[kind], target.address, (host, int(port)), size
        )
        statuses = await attack
    return _waits(seen.waits, statuses)


def _waits(waits: Sequence[float], statuses: Sequence[int] = ()) -> Waits:
    """Return the waits of callers that arrive at random times: each wait is weighted by its length."""
    ordered, seen = sorted(waits), 0.0
    for wait in ordered:
        seen += wait
        if seen >= 0.95 * sum(ordered):
            return Waits(wait, ordered[-1], statuses)
    raise AssertionError("the bystander was never answered")


async def main(kinds: Sequence[str]) -> int:
    """Run kinds in their large form and print a table. Return 1 if a bystander waited too long."""
    failed = False
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))  # the table stands alone
    with tempfile.TemporaryDirectory() as folder:
        async with attacked_gateway(Path(folder)) as target:
            sys.stdout.write("attack           control p95      p95  longest   MiB before  peak  after   answers\n")
            for kind in kinds:
                quiet, before = await control(target, 5.0), target.rss
                seen, peak = await _watched(target, kind)
                await asyncio.sleep(_SETTLE)
                bad = seen.p95 > quiet.p95 + 1.0 or any(status >= 500 for status in seen.statuses)
                failed = failed or bad
                memory = "".join(f"{each / _MIB:8.0f}" for each in (before, peak, target.rss))
                answers = dict(Counter(seen.statuses))
                line = f"{kind:16}{quiet.p95:10.2f} s {seen.p95:8.2f} {seen.longest:8.2f}     {memory}   {answers}"
                sys.stdout.write(f"{line}{'  FAILED' if bad else ''}\n")
                sys.stdout.flush()
    return int(failed)


async def _watched(target: Target, kind: str) -> tuple[Waits, int]:
    """Run a large attack, and return the waits and the gateway's peak memory in bytes."""
    task, peak = asyncio.create_task(trial(target, kind, _LARGE)), 0
    while not task.done():
        peak = max(peak, target.rss)
        await asyncio.wait({task}, timeout=0.1)
    return await task, peak


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:] or list(KINDS))))
