"""Chooses the verifier of a session: one that is ready, the same one every turn, and none with too many sessions."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass

import structlog

from gateway.metrics import GatewayMetrics
from gateway.store.pins import Pins
from gateway.verifiers.client import VerifierClient, VerifierRefused
from specdec.errors import DeadlineExceeded, Draining, NoVerifier, SpecdecError
from specdec.serving.discovery import Endpoint, Endpoints, Source
from specdec.serving.rendezvous import ranking
from specdec.wire.generation import DrafterState, VerifierInfo

INFO_TIMEOUT = 2.0
"""Seconds that a verifier has to answer a probe."""
_MAX_MISSED = 3
"""Probes missed in a row after which a ready verifier is unreachable, since a busy machine may miss one or two; it is
dialled again then, and behind as many more."""


@dataclass(slots=True, eq=False)
class Replica:
    """A verifier and its state, which probes and failed calls change."""

    verifier: VerifierClient
    endpoint: Endpoint
    info: VerifierInfo | None = None
    """The answer to its last probe; None while it is not fit to serve."""
    condition: str = "connecting"
    """What the last probe or failed call found."""
    running: int = 0
    """Generations of this gateway that run there."""
    missed: int = _MAX_MISSED
    """Probes missed since something came from it last."""

    @property
    def state(self) -> str:
        """ "ready", "connecting", "unreachable", "draining", or "refused: " and why."""
        return "draining" if self.endpoint.draining and self.info is not None else self.condition

    @property
    def ready(self) -> bool:
        """Whether new sessions may go there."""
        return self.info is not None and not self.endpoint.draining

    def mark_lost(self) -> bool:
        """A call to it failed; returns whether that changed its state."""
        return self._enter("unreachable", None)

    async def probe(self, tokenizer_hash: str) -> bool:
        """Ask for its facts; returns whether they changed its state.

        A verifier with another tokenizer is refused for as long as it says so: no session is ever sent to it. One that
        sent something for a generation meanwhile is there: a process short of processor time reads answers too late.
        """
        asked = time.monotonic()
        try:
            info = await self.verifier.info(INFO_TIMEOUT)
        except Draining:
            return self._enter("draining", None)
        except DeadlineExceeded:
            if self.verifier.heard >= asked:
                self.missed = 0
                return False
            self.missed += 1
            if self.missed % _MAX_MISSED == 0:
                self.verifier.redial()
            return self.missed >= _MAX_MISSED and self._enter("unreachable", None)
        except VerifierRefused as error:
            return self._enter(f"refused: {error.message}", None)
        except SpecdecError:
            return self._enter("unreachable", None)
        if info.tokenizer_hash != tokenizer_hash:
            reason = f"its tokenizer is not this gateway's ({info.model}: {info.tokenizer_hash}, not {tokenizer_hash})"
            return self._enter(f"refused: {reason}", None)
        return self._enter("ready", info)

    def _enter(self, condition: str, info: VerifierInfo | None) -> bool:
        self.info = info
        self.missed = 0 if info else max(self.missed, _MAX_MISSED)
        before, self.condition = self.condition, condition
        return condition != before


_LOAD_FACTOR = 1.25
"""How many times its even share of generations a verifier may run before a session goes to the next in its ranking."""

_log = structlog.get_logger()


class VerifierPool:
    """All known verifiers, probed again and again; only those that are ready are chosen."""

    def __init__(self, tokenizer_hash: str, metrics: GatewayMetrics, pins: Pins | None = None, model: str = "") -> None:
        """Begin without verifiers.

        Args:
            tokenizer_hash: verifiers whose tokenizer has another hash are refused.
            pins: remembers the verifier of each session; None relies on the ranking alone.
            model: the model's name, for the metrics.
        """
        self._pins = pins
        self._model = model
        self._replicas: dict[str, Replica] = {}
        self._leaving: list[Replica] = []
        """Replicas that are no longer known, kept open while generations of this gateway run there."""
        self._tokenizer_hash = tokenizer_hash
        self._metrics = metrics
        metrics.verifiers_ready.labels(model).set_function(lambda: len(self.ready_addresses))
        self._unserved = metrics.unserved.labels(model)
        self._changed = asyncio.Event()
        self.known = asyncio.Event()
        """Set once the verifiers of a source's first snapshot have been probed."""

    @property
    def states(self) -> dict[str, str]:
        """Address to "ready", "connecting", "unreachable", "draining", or "refused: " and why."""
        return {address: replica.state for address, replica in self._replicas.items()}

    @property
    def ready_addresses(self) -> set[str]:
        """The addresses of the verifiers that are ready."""
        return set(self._ready(""))

    @property
    def info(self) -> VerifierInfo:
        """The model and its limits, from any verifier that is ready.

        Raises:
            NoVerifier: no verifier is ready.
        """
        ready = self._ready("")
        if not ready:
            raise NoVerifier(self._states_text())
        return next(iter(ready.values()))

    @property
    def drafters(self) -> tuple[DrafterState, ...]:
        """The drafters of the ready verifiers, each once: ready, where it is for any of them."""
        known = [drafter for info in self._ready("").values() for drafter in info.drafters]
        known.sort(key=lambda drafter: drafter.state == "ready")
        return tuple({drafter.address: drafter for drafter in known}.values())

    def verifier_for(
        self, session: str, system_fingerprint: str = "", avoid: Collection[str] = ()
    ) -> tuple[VerifierClient, VerifierInfo]:
        """Choose a session's verifier by rendezvous hashing with bounded loads (Mirrokni et al., arXiv 1608.01350).

        Args:
            session: its id; the same id is given the same verifier while that one is ready and below its bound.
            system_fingerprint: what the verifier must have; empty for a session that begins now.
            avoid: addresses that are chosen only when no other verifier is ready.

        Raises:
            NoVerifier: no verifier is ready.
        """
        ready = self._ready(system_fingerprint)
        if not ready:
            raise NoVerifier(self._states_text())
        candidates = self._candidates(ready, avoid)
        address = candidates[self._ranked(session, candidates)]
        return self._replicas[address].verifier, ready[address]

    async def wait_for_verifier(
        self, session: str, system_fingerprint: str, seconds: float, avoid: Collection[str] = ()
    ) -> tuple[VerifierClient, VerifierInfo]:
        """As `verifier_for`, but wait up to `seconds` until a verifier is ready.

        Raises:
            NoVerifier: no verifier was ready in that time.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.verifier_for(session, system_fingerprint, avoid)
            except NoVerifier:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._unserved.inc()
                    raise
            await self.wait_for_change(left)

    async def pinned_verifier(
        self, verifier: VerifierClient, session: str, epoch: int, system_fingerprint: str, avoid: Collection[str]
    ) -> VerifierClient:
        """The verifier that served the session last, while it is ready; otherwise `verifier`, which is pinned now.

        A pin of an older `epoch` than the one stored changes nothing; the other arguments are those of `verifier_for`.
        """
        replica = self._replica_of(verifier)
        candidates = self._candidates(self._ready(system_fingerprint), avoid)
        if self._pins is None or replica is None or replica.endpoint.key not in candidates:
            return verifier
        key = await self._pins.settle(session, epoch, replica.endpoint.key, candidates)
        pinned = self._replicas.get(candidates.get(key, ""))
        return pinned.verifier if pinned else verifier

    @contextmanager
    def serving(self, verifier: VerifierClient) -> Iterator[None]:
        """Count one generation of `verifier` inside the context; its connection stays open as long."""
        replica = self._replica_of(verifier)
        if replica is None:
            yield
            return
        replica.running += 1
        try:
            yield
        finally:
            replica.running -= 1

    def mark_lost(self, verifier: VerifierClient) -> None:
        """A call to it failed: it is not chosen again before it has answered a probe."""
        replica = self._replica_of(verifier)
        if replica is not None and replica.mark_lost():
            self._publish(replica)

    async def wait_for_change(self, timeout: float) -> None:
        """Return when some verifier's state has changed, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()

    async def follow(self, source: Source, dial: Callable[[str], VerifierClient]) -> None:
        """Know exactly the verifiers that `source` names, dialled with `dial`; runs until it is cancelled."""
        async with aclosing(source.snapshots()) as snapshots:
            async for endpoints in snapshots:
                _log.info("verifiers_found", addresses=[endpoint.address for endpoint in endpoints])
                self.replace(endpoints, dial)
                await self.probe()
                self.known.set()

    def replace(self, endpoints: Endpoints, dial: Callable[[str], VerifierClient]) -> None:
        """Dial verifiers that are new; close those that are gone once none of this gateway's generations runs there."""
        wanted = {endpoint.address: endpoint for endpoint in endpoints}
        for address, replica in list(self._replicas.items()):
            if address not in wanted or wanted[address].uid != replica.endpoint.uid:
                self._leaving.append(self._replicas.pop(address))
                self._metrics.verifier_up.remove(address, self._model)
        for address, endpoint in wanted.items():
            if address not in self._replicas:
                self._replicas[address] = Replica(dial(address), endpoint)
            replica = self._replicas[address]
            replica.endpoint = endpoint
            self._metrics.verifier_up.labels(address, self._model).set(replica.ready)
        self._wake()

    async def watch(self, every: float) -> None:
        """Probe all verifiers every `every` seconds; runs until it is cancelled."""
        while True:
            await self.probe()
            await asyncio.sleep(every)

    async def probe(self) -> None:
        """Probe every verifier once, and close those that have left and run nothing any more."""
        await asyncio.gather(*(self._probe(replica) for replica in self._replicas.values()))
        idle = [replica for replica in self._leaving if not replica.running]
        self._leaving = [replica for replica in self._leaving if replica.running]
        await asyncio.gather(*(replica.verifier.close() for replica in idle))

    async def close(self) -> None:
        """Close all connections."""
        replicas = (*self._replicas.values(), *self._leaving)
        await asyncio.gather(*(replica.verifier.close() for replica in replicas))

    async def _probe(self, replica: Replica) -> None:
        if await replica.probe(self._tokenizer_hash):
            self._publish(replica)

    def _publish(self, replica: Replica) -> None:
        """Log a new state, show it in the metrics and wake those who wait; not for a replica that is leaving."""
        if self._replicas.get(replica.verifier.address) is not replica:
            return
        log = _log.error if replica.state.startswith("refused") else _log.info
        log("verifier_state", address=replica.verifier.address, state=replica.state)
        self._metrics.verifier_up.labels(replica.verifier.address, self._model).set(replica.ready)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _candidates(self, ready: Mapping[str, VerifierInfo], avoid: Collection[str]) -> dict[str, str]:
        """Discovery keys of the ready verifiers, with their addresses; without those to avoid, unless none is left."""
        return {self._replicas[address].endpoint.key: address for address in ready.keys() - set(avoid) or ready.keys()}

    def _ranked(self, session: str, candidates: Mapping[str, str]) -> str:
        """The key of the session's first candidate, in its ranking, whose load is below the bound."""
        loads = {key: self._replicas[address].running for key, address in candidates.items()}
        bound = math.ceil(_LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads))
        return next(key for key in ranking(session, loads) if loads[key] < bound)

    def _replica_of(self, verifier: VerifierClient) -> Replica | None:
        known = (*self._replicas.values(), *self._leaving)
        return next((replica for replica in known if replica.verifier is verifier), None)

    def _ready(self, system_fingerprint: str) -> dict[str, VerifierInfo]:
        """The ready verifiers of a fingerprint by address; all that are ready for an empty one."""
        return {
            address: replica.info
            for address, replica in self._replicas.items()
            if replica.ready
            and replica.info is not None
            and system_fingerprint in ("", replica.info.system_fingerprint)
        }

    def _states_text(self) -> str:
        states = ", ".join(f"{address} is {state}" for address, state in self.states.items())
        return f"no verifier is ready: {states or 'none is known'}"
