"""One chaos run: an undisturbed answer to every request, then the same requests while faults are injected."""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import cluster
from tests.chaos.checker import check
from tests.chaos.client import Client
from tests.chaos.cluster import Cluster, Setup
from tests.chaos.faults import Fault
from tests.chaos.injector import FaultInjector
from tests.chaos.near_ties import Judge
from tests.chaos.observer import CommitLatency, stored_logs
from tests.chaos.report import Report, Timing
from tests.chaos.scenarios import PROMPT, scenario, with_stop
from tests.chaos.stream import Answer, Scenario, Stream


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of the clients.

    Half of the clients request only greedy answers, the others only answers in coupled mode.
    """

    clients: int = 6
    scenarios: int = 6
    """Number of requests, which must be even. Each is also sent with a stop string."""
    tokens: int = 160
    """Tokens of one answer."""
    vocabulary: int = 300
    """Prompts contain ids below this."""


async def chaos(
    setup: Setup, load: Load, faults: Sequence[Fault], seed: int, folder: Path, say: Callable[[str], object]
) -> Report:
    """Inject `faults` into a new system under load. Clients stop after the last fault is repaired."""
    async with cluster.running(setup, folder) as running:
        asked, expected = await undisturbed(running, setup.target, load, seed)
        say(f"{len(asked)} undisturbed answers, {sum(len(answer.tokens) for answer in expected.values())} tokens")
        clients = [Client(number, running.urls) for number in range(load.clients)]
        injector = FaultInjector(running, clients, setup.lease, say)
        latency = CommitLatency(running.gateways)
        watching = asyncio.create_task(latency.watch())
        over = asyncio.Event()
        asking = [asyncio.create_task(_ask(client, number, asked, over)) for number, client in enumerate(clients)]
        try:
            await injector.run(faults)
            over.set()
            streams = list(itertools.chain.from_iterable(await asyncio.gather(*asking)))
        finally:
            for task in (watching, *asking):
                task.cancel()
        generations = dict.fromkeys(name for stream in streams for name in stream.shown)
        logs = await stored_logs(running.redis_url, generations, PROMPT)
        checked = tuple(check(streams, expected, logs))
        timing = Timing(latency.quantile(0.5), latency.quantile(0.99), setup.lease)
        return Report(seed, checked, tuple(injector.injected), len(injector.skipped), timing)


async def undisturbed(
    running: Cluster, target: Path, load: Load, seed: int
) -> tuple[list[Scenario], dict[str, Answer]]:
    """Return the requests of a load and their undisturbed answers by name. No answer has a near tie."""
    client, judge, rng = Client(0, running.urls), Judge(target), random.Random(seed)
    plain: list[Scenario] = []
    expected: dict[str, Answer] = {}
    while len(plain) < load.scenarios:
        asked = scenario(rng, len(plain), load.tokens, load.vocabulary)
        answer = await _answer(client, asked)
        if not judge.has_near_tie(asked.body["prompt"], answer.tokens, asked.body.get("seed")):
            plain.append(asked)
            expected[asked.name] = answer
    stopped = [with_stop(each, expected[each.name]) for each in plain]
    expected |= {each.name: await _answer(client, each) for each in stopped}
    return [*plain, *stopped], expected


async def _answer(client: Client, asked: Scenario) -> Answer:
    stream = await client.ask(asked)
    slow = {"ReadTimeout"}  # for a busy machine, even without faults
    if set(stream.interruptions) - slow or not stream.finish:
        raise RuntimeError(f"{asked.name} failed with nothing hurt: {stream.interruptions}")
    return stream.answer


async def _ask(client: Client, number: int, asked: Sequence[Scenario], over: asyncio.Event) -> list[Stream]:
    """Return the streams of one client, all of one mode. Each client begins with another scenario."""
    streams = []
    for turn in itertools.count(number, 2):
        if over.is_set():
            return streams
        streams.append(await client.ask(asked[turn % len(asked)]))
    return streams
