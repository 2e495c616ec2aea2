"""Does faults to a cluster and undoes them, one at a time on each process."""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.chaos.client import Client
from tests.chaos.cluster import Cluster, Member
from tests.chaos.faults import Fault, Kind

BEYOND_LEASE = 1.8
"""Stops and freezes last this many leases."""


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done."""

    fault: Fault
    time: float
    """On the clock of `time.monotonic`."""
    victim: str


class Supervisor:
    """Hurts only what has a healthy replica: any one process may fail at any moment, not all of a role."""

    def __init__(self, cluster: Cluster, clients: Sequence[Client], lease: float, say: Callable[[str], object]) -> None:
        """`lease` is in seconds; `say` hears of every fault."""
        self._cluster = cluster
        self._clients = clients
        self._pause = lease * BEYOND_LEASE
        self._say = say
        self.done: list[Done] = []
        self.skipped: list[Fault] = []

    async def run(self, faults: Sequence[Fault]) -> None:
        """Do every fault at its time; return when everything is whole again."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as repairs:
            for fault in faults:
                await asyncio.sleep(began + fault.at - time.monotonic())
                repairs.create_task(self._do(fault))

    async def _do(self, fault: Fault) -> None:
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
            await self._hurt(fault.kind, member)
        finally:
            member.busy = False

    def _victim(self, fault: Fault) -> Member | None:
        members = self._cluster.of(fault.role)
        if any(member.busy for member in members):
            return None
        return members[fault.index % len(members)]

    async def _hurt(self, kind: Kind, member: Member) -> None:
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
                member.wire.cut()
            case Kind.FREEZE:
                member.wire.freeze()
                await asyncio.sleep(self._pause)
                member.wire.thaw()
        await member.up()

    def _note(self, fault: Fault, victim: str) -> None:
        self.done.append(Done(fault, time.monotonic(), victim))
        self._say(f"{fault.at:7.1f} s  {fault.kind:<6}  {victim}")
