"""Which verifier serves a session: the ready ones are known, a session keeps to one of them, and none gets too many."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress

import structlog

from gateway.metrics import GatewayMetrics
from gateway.store.pins import NoPins, Pins
from gateway.verifiers.replica import Replica
from gateway.verifiers.verifier import Verifier, VerifierInfo
from specdec.errors import NoVerifier
from specdec.serving.discovery import Endpoint, Endpoints, Source
from specdec.serving.rendezvous import ranking

_LOAD_FACTOR = 1.25
"""How much more than its even share a verifier may carry before a session goes to the next one in its ranking."""

_log = structlog.get_logger()


class VerifierPool:
    """The verifiers there are, looked at again and again; only the ready ones are chosen."""

    def __init__(
        self, verifiers: Sequence[Verifier], tokenizer_hash: str, metrics: GatewayMetrics, pins: Pins | None = None
    ) -> None:
        """`verifiers` are there from the start; `follow` brings and takes others."""
        self._pins = pins or NoPins()
        self._replicas = {verifier.address: Replica(verifier, Endpoint(verifier.address)) for verifier in verifiers}
        self._leaving: list[Replica] = []
        self._tokenizer_hash = tokenizer_hash
        self._metrics = metrics
        self._changed = asyncio.Event()
        self.known = asyncio.Event()
        """Set once the first snapshot of a source has been looked at."""

    @property
    def states(self) -> dict[str, str]:
        """Address to "ready", "connecting", "unreachable", "draining" or "refused: ..."."""
        return {address: replica.state for address, replica in self._replicas.items()}

    @property
    def ready_addresses(self) -> set[str]:
        """Where the ready ones are."""
        return set(self._ready(""))

    @property
    def facts(self) -> VerifierInfo:
        """What the model can do, as any ready verifier tells it.

        Raises:
            NoVerifier: none is ready.
        """
        ready = self._ready("")
        if not ready:
            raise NoVerifier(self._why())
        return next(iter(ready.values()))

    def choose(
        self, session: str, system_fingerprint: str = "", avoid: Collection[str] = ()
    ) -> tuple[Verifier, VerifierInfo]:
        """The verifier of a session: rendezvous hashing with bounded loads (Mirrokni et al., arXiv 1608.01350).

        Args:
            session: keeps to its verifier while that one is ready and has not too much.
            system_fingerprint: of the verifier it began with; empty when it begins now.
            avoid: addresses taken only when there is no other.

        Raises:
            NoVerifier: none is ready.
        """
        ready = self._ready(system_fingerprint)
        if not ready:
            raise NoVerifier(self._why())
        candidates = self._candidates(ready, avoid)
        address = candidates[self._affine(session, candidates)]
        return self._replicas[address].verifier, ready[address]

    async def find(
        self, session: str, system_fingerprint: str, seconds: float, avoid: Collection[str] = ()
    ) -> tuple[Verifier, VerifierInfo]:
        """Choose, and wait up to `seconds` for one to be ready.

        Raises:
            NoVerifier: none was ready in that time.
        """
        give_up = time.monotonic() + seconds
        while True:
            try:
                return self.choose(session, system_fingerprint, avoid)
            except NoVerifier:
                left = give_up - time.monotonic()
                if left <= 0:
                    raise
            await self.wait_for_change(left)

    async def settle(
        self, verifier: Verifier, session: str, epoch: int, system_fingerprint: str, avoid: Collection[str]
    ) -> Verifier:
        """The verifier that served the session last, while it is ready; else `verifier`, which is remembered."""
        replica = self._find(verifier)
        candidates = self._candidates(self._ready(system_fingerprint), avoid)
        if replica is None or replica.endpoint.key not in candidates:
            return verifier
        key = await self._pins.settle(session, epoch, replica.endpoint.key, candidates)
        pinned = self._replicas.get(candidates.get(key, ""))
        return pinned.verifier if pinned else verifier

    @contextmanager
    def serving(self, verifier: Verifier) -> Iterator[None]:
        """Count one generation of `verifier`, whose connection stays open as long."""
        replica = self._find(verifier)
        if replica is None:
            yield
            return
        replica.running += 1
        try:
            yield
        finally:
            replica.running -= 1

    def lost(self, verifier: Verifier) -> None:
        """It failed a call: not chosen again before it has answered a look."""
        replica = self._find(verifier)
        if replica is not None and replica.lost():
            self._note(replica)

    async def wait_for_change(self, timeout: float) -> None:
        """Return when some verifier's state has changed, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()

    async def follow(self, source: Source, dial: Callable[[str], Verifier]) -> None:
        """Have exactly the verifiers that `source` names, for ever."""
        async with aclosing(source.snapshots()) as snapshots:
            async for endpoints in snapshots:
                _log.info("verifiers_found", addresses=[endpoint.address for endpoint in endpoints])
                self.replace(endpoints, dial)
                await self.look()
                self.known.set()

    def replace(self, endpoints: Endpoints, dial: Callable[[str], Verifier]) -> None:
        """Dial who is new, let go of who is gone as soon as nothing runs there any more."""
        wanted = {endpoint.address: endpoint for endpoint in endpoints}
        for address, replica in list(self._replicas.items()):
            if address not in wanted or wanted[address].uid != replica.endpoint.uid:
                self._leaving.append(self._replicas.pop(address))
                self._metrics.verifier_up.remove(address)
        for address, endpoint in wanted.items():
            if address not in self._replicas:
                self._replicas[address] = Replica(dial(address), endpoint)
            replica = self._replicas[address]
            replica.endpoint = endpoint
            self._metrics.verifier_up.labels(address).set(replica.ready)
        self._wake()

    async def watch(self, every: float) -> None:
        """Look at all verifiers, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(every)

    async def look(self) -> None:
        """Look at every verifier once."""
        await asyncio.gather(*(self._look_at(replica) for replica in self._replicas.values()))
        idle = [replica for replica in self._leaving if not replica.running]
        self._leaving = [replica for replica in self._leaving if replica.running]
        await asyncio.gather(*(replica.verifier.close() for replica in idle))

    async def close(self) -> None:
        """Let all connections go."""
        await self._pins.close()
        replicas = (*self._replicas.values(), *self._leaving)
        await asyncio.gather(*(replica.verifier.close() for replica in replicas))

    async def _look_at(self, replica: Replica) -> None:
        if await replica.look(self._tokenizer_hash):
            self._note(replica)

    def _note(self, replica: Replica) -> None:
        """Tell of a new state, unless it is that of one that is leaving."""
        if self._replicas.get(replica.verifier.address) is not replica:
            return
        log = _log.error if replica.state.startswith("refused") else _log.info
        log("verifier_state", address=replica.verifier.address, state=replica.state)
        self._metrics.verifier_up.labels(replica.verifier.address).set(replica.ready)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _candidates(self, ready: Mapping[str, VerifierInfo], avoid: Collection[str]) -> dict[str, str]:
        """Key to address of the ready ones without those to avoid, unless that leaves none."""
        return {self._replicas[address].endpoint.key: address for address in ready.keys() - set(avoid) or ready.keys()}

    def _affine(self, session: str, candidates: Mapping[str, str]) -> str:
        loads = {key: self._replicas[address].running for key, address in candidates.items()}
        bound = math.ceil(_LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads))
        return next(key for key in ranking(session, loads) if loads[key] < bound)

    def _find(self, verifier: Verifier) -> Replica | None:
        known = (*self._replicas.values(), *self._leaving)
        return next((replica for replica in known if replica.verifier is verifier), None)

    def _ready(self, system_fingerprint: str) -> dict[str, VerifierInfo]:
        return {
            address: replica.info
            for address, replica in self._replicas.items()
            if replica.ready
            and replica.info is not None
            and system_fingerprint in ("", replica.info.system_fingerprint)
        }

    def _why(self) -> str:
        states = ", ".join(f"{address} is {state}" for address, state in self.states.items())
        return f"no verifier is ready: {states or 'none is known'}"
