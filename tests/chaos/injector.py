"""Injection of faults into a cluster, and their repair, one at a time for each role."""

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.chaos.client import Client
from tests.chaos.cluster import Cluster, Member
from tests.chaos.faults import Fault, InTurn, Kind
from tests.support.gateway_fakes import until

BEYOND_LEASE = 1.8
"""Duration of a stop or a freeze, in leases."""
SPACING_SECONDS = 600.0
"""Seconds after which clients that receive too few tokens end a run."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected."""

    fault: Fault
    time: float
    """Time of the injection, on the clock of `time.monotonic`."""
    victim: str
    """Name of the process or client, as in `verifier-1`."""


class FaultInjector:
    """Injects a fault only if no other process of the role has one, so that a role never loses all of its replicas."""

    def __init__(self, cluster: Cluster, clients: Sequence[Client], lease: float, say: Callable[[str], object]) -> None:
        """Set the lease in seconds. `say` is called with a line for every fault."""
        self._cluster = cluster
        self._clients = clients
        self._pause = lease * BEYOND_LEASE
        self._say = say
        self.injected: list[InjectedFault] = []
        self.skipped: list[Fault] = []

    async def run(self, faults: Sequence[Fault]) -> None:
        """Inject every fault at its time. Return after the last one is repaired."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as repairs:
            for fault in faults:
                await asyncio.sleep(began + fault.at - time.monotonic())
                repairs.create_task(self._inject(fault))

    async def kill_in_turn(self, plan: InTurn) -> None:
        """Kill the processes of a role in turn until clients have enough tokens.

        Raises:
            TimeoutError: clients received too few tokens, or a process did not become ready again.
        """
        began, count = time.monotonic(), len(self._cluster.of(plan.role))
        for number in itertools.count():
            await self._receive(plan.spacing)
            if number >= plan.kills and self._received >= plan.tokens:
                return
            await self._inject(Fault(time.monotonic() - began, Kind.KILL, plan.role, number % count))

    async def _receive(self, tokens: int) -> None:
        goal = self._received + tokens
        await until(lambda: self._received >= goal, SPACING_SECONDS)

    @property
    def _received(self) -> int:
        """Number of tokens that all clients have received."""
        return sum(len(stream.tokens) for client in self._clients for stream in client.streams)

    async def _inject(self, fault: Fault) -> None:
        if fault.kind is Kind.LEAVE:
            number = random.Random(fault.at).randrange(len(self._clients))
            self._note(fault, f"client-{number + 1}")
            self._clients[number].leave()
            return
        member = self._victim(fault)
        if member is None:
            self.skipped.append(fault)
            return
        member.busy = True
        try:
            self._note(fault, member.command.name)
            await self._inject_into(fault.kind, member)
        finally:
            member.busy = False

    def _victim(self, fault: Fault) -> Member | None:
        members = self._cluster.of(fault.role)
        if any(member.busy for member in members):
            return None
        return members[fault.index % len(members)]

    async def _inject_into(self, kind: Kind, member: Member) -> None:
        match kind:
            case Kind.KILL:
                member.signal(signal.SIGKILL)
                assert member.child is not None
                await asyncio.to_thread(member.child.process.wait)
                member.start()
            case Kind.STOP:
                member.signal(signal.SIGSTOP)
                await asyncio.sleep(self._pause)
                member.signal(signal.SIGCONT)
            case Kind.CUT:
                member.proxy.cut()
            case Kind.FREEZE:
                member.proxy.freeze()
                await asyncio.sleep(self._pause)
                member.proxy.thaw()
        await member.up()

    def _note(self, fault: Fault, victim: str) -> None:
        self.injected.append(InjectedFault(fault, time.monotonic(), victim))
        self._say(f"{fault.at:7.1f} s  {fault.kind:<6}  {victim}")
