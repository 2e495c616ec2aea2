"""Processes of a role are killed in turn, each while the others are ready."""

import asyncio
import signal
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from tests.chaos.client import Client
from tests.chaos.cluster import Cluster
from tests.chaos.faults import InTurn, Kind
from tests.chaos.injector import FaultInjector
from tests.chaos.stream import Stream


@dataclass
class Process:
    """A verifier that takes a moment to be ready again."""

    name: str
    journal: list[str]
    role: str = "verifier"
    busy: bool = False
    child: Any = field(default_factory=lambda: SimpleNamespace(process=SimpleNamespace(wait=lambda: None)))

    @property
    def command(self) -> Any:
        return SimpleNamespace(name=self.name)

    def signal(self, number: signal.Signals) -> None:
        assert number == signal.SIGKILL
        self.journal.append(f"{self.name} killed")

    def start(self) -> None:
        """Start nothing."""

    async def up(self) -> None:
        await asyncio.sleep(0.02)
        self.journal.append(f"{self.name} ready")


async def killed(plan: InTurn) -> tuple[FaultInjector, list[str], int]:
    """Kill two processes in turn while one client receives tokens; return also the journal and the tokens."""
    journal: list[str] = []
    cluster = Cluster(cast(Any, (Process("a", journal), Process("b", journal))), "", ())
    client, stream = Client(0, ["http://here"]), Stream("s")
    client.streams.append(stream)

    async def receive() -> None:
        while True:
            stream.tokens.append(1)
            await asyncio.sleep(0)

    receiving = asyncio.create_task(receive())
    injector = FaultInjector(cluster, [client], 1.0, lambda _: None)
    await injector.kill_in_turn(plan)
    receiving.cancel()
    return injector, journal, len(stream.tokens)


async def test_each_is_ready_again_before_the_next_is_killed() -> None:
    injector, journal, _ = await killed(InTurn(tokens=1, spacing=5, kills=4))
    assert journal == ["a killed", "a ready", "b killed", "b ready"] * 2
    assert [(each.fault.kind, each.victim) for each in injector.injected] == [(Kind.KILL, "a"), (Kind.KILL, "b")] * 2
    assert injector.skipped == []


async def test_kills_go_on_until_clients_have_enough_tokens() -> None:
    injector, _, tokens = await killed(InTurn(tokens=3000, spacing=5, kills=1))
    assert tokens >= 3000
    assert len(injector.injected) >= 1
