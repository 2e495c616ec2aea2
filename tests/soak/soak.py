"""One soak: `specdec up` under a constant load, with small budgets so that everything that may grow does so soon."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from specdec.cli.local import valkey
from specdec.cli.local.processes import ChildCommand, Children
from specdec.cli.local.valkey import Embedded
from tests.e2e.system import System, running_system, wait_until
from tests.soak.load import Load
from tests.soak.memory import Memory, grown

SESSION_TTL = 10
"""Seconds for which sessions and blocks of keys and values are kept."""
_KV_BUDGET = 2**25
"""Bytes of keys and values in the verifier, the drafter and their store, filled by a few hundred requests."""
_EXPIRED = 3 * SESSION_TTL + 15
"""Seconds after the last answer within which every key expires. The secret of names lives longest, 3 times the TTL."""
_BUDGETS = {
    "SPECDEC_VERIFIER_KV_BYTES": str(_KV_BUDGET),
    "SPECDEC_DRAFTER_KV_BYTES": str(_KV_BUDGET),
    "SPECDEC_GATEWAY_SESSION_TTL": str(SESSION_TTL),
    "SPECDEC_GATEWAY_KV__TTL": str(SESSION_TTL),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a soak."""

    seconds: float
    warm: float
    """Seconds after which memory must be constant."""
    every: float
    """Seconds between two samples."""
    rate: float
    """Requests a second."""
    seed: int
    bound: float
    """Largest growth of a process, in MiB a minute."""


@dataclass(frozen=True, slots=True)
class Soaked:
    """Results of a soak."""

    plan: Plan
    memories: Sequence[Memory]
    answers: Counter[str]
    keys: int
    """Keys in both stores together, at the end of the load."""
    left: int
    """Keys in both stores together, after the longest time to live."""

    @property
    def faults(self) -> list[str]:
        """Return the faults found, or an empty list."""
        found = grown(self.memories, self.plan.warm, self.plan.bound)
        found += [f"{count} answers: {kind}" for kind, count in self.answers.items() if kind not in ("200", "429")]
        found += ["no answer"] if not self.answers["200"] else []
        return found + ([f"{self.left} of {self.keys} keys are left in the stores"] if self.left else [])

    def as_json(self) -> dict[str, object]:
        """Return the whole report."""
        return {
            "seconds": self.plan.seconds,
            "warm_seconds": self.plan.warm,
            "bound_mib_per_minute": self.plan.bound,
            "answers": dict(self.answers),
            "keys": self.keys,
            "keys_left": self.left,
            "processes": [memory.as_json(self.plan.warm) for memory in self.memories],
            "faults": self.faults,
        }


def soak(plan: Plan, folder: Path) -> Soaked:
    """Start a system in `folder` and load it. The path must be short enough for a socket file."""
    with _stores(folder) as (sessions, blocks):
        urls = (sessions.url, blocks.url)
        arguments = ("--redis-url", sessions.url, "--kv-redis-url", blocks.url, "--log-dir", str(folder / "logs"))
        with running_system(folder, *arguments, **_BUDGETS) as system:
            memories = [Memory("up", system.process.pid), *_services(system), *_servers(urls)]
            load = Load(system.http, plan.rate, plan.seed)
            asyncio.run(_loaded(plan, load, memories))
            keys = _keys(urls)
            deadline = time.monotonic() + _EXPIRED
            while _keys(urls) and time.monotonic() < deadline:
                time.sleep(1)
            return Soaked(plan, memories, load.answers, keys, _keys(urls))


async def _loaded(plan: Plan, load: Load, memories: Sequence[Memory]) -> None:
    """Run the load, and take samples until it is over."""
    began = time.monotonic()
    loading = asyncio.create_task(load.run(plan.seconds))
    while not loading.done():
        for memory in memories:
            memory.sample(time.monotonic() - began)
        await asyncio.wait([loading], timeout=plan.every)
    loading.result()


@contextmanager
def _stores(folder: Path) -> Iterator[tuple[Embedded, Embedded]]:
    """Start the two servers that `specdec up` would start, at addresses known to the test."""
    binary = valkey.resolve()
    stores = valkey.embed(binary, folder), valkey.embed_kv(binary, folder, _KV_BUDGET)
    with Children(grace=5.0) as children:
        for store in stores:
            children.start(ChildCommand(store.name, store.role, store.argv, folder / f"{store.name}.log", ""), {})
        for store in stores:
            wait_until(lambda store=store: valkey.answers(store.url))  # type: ignore[misc]
        yield stores


def _services(system: System) -> list[Memory]:
    return [Memory(entry["role"], entry["pid"]) for entry in system.state]


def _servers(urls: Sequence[str]) -> list[Memory]:
    found = []
    for name, url in zip(("redis", "redis-kv"), urls, strict=True):
        with redis.Redis.from_url(url) as client:
            found.append(Memory(name, int(client.info("server")["process_id"])))
    return found


def _keys(urls: Sequence[str]) -> int:
    """Return the number of keys in all stores together."""
    count = 0
    for url in urls:
        with redis.Redis.from_url(url) as client:
            count += int(client.dbsize())
    return count
