"""One attack with a bystander, and a bystander alone.

`python -m tests.attacks.trial` runs all kinds in their large form, and with names of kinds only these.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tests.attacks.attacked_gateway import DEMO, Target, attacked_gateway
from tests.attacks.attacker import PROMPT
from tests.attacks.bystander import bystander
from tests.attacks.kinds import KINDS, SERVED_KINDS, made_up_users
from tests.conformance.served_pair import running_verifier

_LARGE = 8
"""Size of the large form."""
_SETTLE = 30.0
"""Seconds after a large attack in which memory is released."""
_MIB = 2**20
FROZEN_STORE = "frozen_store"
"""Name of the attack on the session store itself."""
_FROZEN = 2.0
"""Seconds for which the session store is frozen; requests that come to one frozen for longer are refused."""
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
        statuses = await (_frozen(target, size) if kind == FROZEN_STORE else _attack(target, kind, size))
    return _waits(seen.waits, statuses)


def most_more(kind: str) -> float:
    """Return how much longer than alone a bystander may wait during an attack, in seconds."""
    return 1.0 + (_FROZEN if kind == FROZEN_STORE else 0.0)


@asynccontextmanager
async def target_of(folder: Path, kind: str) -> AsyncIterator[Target]:
    """Run a gateway for attacks of this kind and of those that need no more; its files are in `folder`."""
    async with AsyncExitStack() as stack:
        verifier = ""
        if kind in SERVED_KINDS:
            verifier = (await stack.enter_async_context(running_verifier(DEMO))).address
        yield await stack.enter_async_context(attacked_gateway(folder, verifier))


async def _attack(target: Target, kind: str, size: int) -> Sequence[int]:
    host, port = target.grpc.split(":")
    work = {**KINDS, **SERVED_KINDS}[kind]
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(target.attacker, work, target.address, (host, int(port)), size)


async def _frozen(target: Target, size: int) -> Sequence[int]:
    """Freeze the session store, which no caller can, while 20 · `size` requests come."""
    os.kill(target.store, signal.SIGSTOP)
    try:
        body = {"prompt": PROMPT, "max_tokens": 2, "user": "mallory"}
        answers = asyncio.create_task(target.flood("/v1/completions", body, 20 * size))
        await asyncio.sleep(_FROZEN)
    finally:
        os.kill(target.store, signal.SIGCONT)
    return [status for status, _ in await answers]


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
    sys.stdout.write("attack           control p95      p95  longest   MiB before  peak  after   answers\n")
    for served in (False, True):
        chosen = [kind for kind in kinds if (kind in SERVED_KINDS) is served]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            async with target_of(Path(folder), chosen[0]) as target:
                for kind in chosen:
                    failed |= await _row(target, kind)
    return int(failed)


async def _row(target: Target, kind: str) -> bool:
    """Run an attack in its large form and print its row. Return whether a bystander waited too long."""
    quiet, before = await control(target, 5.0), target.rss
    seen, peak = await _watched(target, kind)
    await asyncio.sleep(_SETTLE)
    late = seen.p95 > quiet.p95 + most_more(kind)
    bad = late or any(status >= 500 for status in seen.statuses)
    memory = "".join(f"{each / _MIB:8.0f}" for each in (before, peak, target.rss))
    answers = dict(Counter(seen.statuses))
    line = f"{kind:16}{quiet.p95:10.2f} s {seen.p95:8.2f} {seen.longest:8.2f}     {memory}   {answers}"
    sys.stdout.write(f"{line}{'  FAILED' if bad else ''}\n")
    sys.stdout.flush()
    return bad


async def _watched(target: Target, kind: str) -> tuple[Waits, int]:
    """Run a large attack, and return the waits and the gateway's peak memory in bytes."""
    task, peak = asyncio.create_task(trial(target, kind, _LARGE)), 0
    while not task.done():
        peak = max(peak, target.rss)
        await asyncio.wait({task}, timeout=0.1)
    return await task, peak


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:] or [*KINDS, FROZEN_STORE, *SERVED_KINDS])))
