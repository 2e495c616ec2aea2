"""One chaos run: an undisturbed answer to every request, then the same requests while faults are injected."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos import cluster
from tests.chaos.checker import check
from tests.chaos.client import Client
from tests.chaos.cluster import Cluster, Setup
from tests.chaos.faults import Fault, InTurn
from tests.chaos.injector import FaultInjector
from tests.chaos.moves import Moves, count_moves, read_attempts
from tests.chaos.near_ties import Judge
from tests.chaos.observer import CommitLatency, stored_first_rounds, stored_logs
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
    prompt: int = PROMPT
    """Number of tokens in every prompt."""
    salted: bool = False
    """Whether no two requests share cached prefixes, so that a verifier has a prompt only by computing or restoring it.
    """


async def chaos(
    setup: Setup, load: Load, faults: Sequence[Fault] | InTurn, seed: int, folder: Path, say: Callable[[str], object]
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
        asking = [
            asyncio.create_task(_ask(client, number, asked, over, salted=load.salted))
            for number, client in enumerate(clients)
        ]
        try:
            await (injector.kill_in_turn(faults) if isinstance(faults, InTurn) else injector.run(faults))
            over.set()
            streams = list(itertools.chain.from_iterable(await asyncio.gather(*asking)))
        finally:
            for task in (watching, *asking):
                task.cancel()
        generations = dict.fromkeys(name for stream in streams for name in stream.shown)
        logs = await stored_logs(running.redis_url, generations, load.prompt)
        moves = await _moves(running, generations, load.prompt) if setup.kv_bytes else Moves()
        checked = tuple(check(streams, expected, logs))
        timing = Timing(latency.quantile(0.5), latency.quantile(0.99), setup.lease)
        return Report(seed, checked, tuple(injector.injected), len(injector.skipped), timing, moves)


async def undisturbed(
    running: Cluster, target: Path, load: Load, seed: int
) -> tuple[list[Scenario], dict[str, Answer]]:
    """Return the requests of a load and their undisturbed answers by name. No answer has a near tie."""
    client, judge, rng = Client(0, running.urls), Judge(target), random.Random(seed)
    plain: list[Scenario] = []
    expected: dict[str, Answer] = {}
    while len(plain) < load.scenarios:
        asked = scenario(rng, len(plain), load.tokens, load.vocabulary, load.prompt)
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


async def _ask(
    client: Client, number: int, asked: Sequence[Scenario], over: asyncio.Event, *, salted: bool
) -> list[Stream]:
    """Return the streams of one client, all of one mode. Each client begins with another scenario."""
    streams = []
    for turn in itertools.count(number, 2):
        if over.is_set():
            return streams
        each = asked[turn % len(asked)]
        own = {"cache_salt": f"{number}-{turn}"} if salted else {}
        streams.append(await client.ask(replace(each, body=each.body | own)))
    return streams


async def _moves(running: Cluster, generations: Iterable[str], prompt: int) -> Moves:
    logs = [member.command.log.read_text(encoding="utf-8", errors="replace") for member in running.of("gateway")]
    rounds = await stored_first_rounds(running.redis_url, generations)
    return count_moves(read_attempts("\n".join(logs).splitlines()), rounds, prompt)
