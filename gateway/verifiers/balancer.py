"""Assigns sessions to verifiers: a ready one, the same one every turn, and none above its load bound."""

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
from gateway.verifiers.placement import Prefix, PrefixMemory, prefix_of, ranking_key
from specdec.errors import DeadlineExceeded, Draining, NoVerifier, SpecdecError
from specdec.serving.discovery import Endpoint, Endpoints, Source
from specdec.serving.rendezvous import ranking
from specdec.wire.generation import Adapter, DrafterState, GenerationCall, VerifierInfo

INFO_TIMEOUT = 2.0
"""Timeout of a probe, in seconds."""
_MAX_MISSED = 3
"""Consecutive missed probes after which a ready verifier counts as unreachable; a busy machine may miss one or two.
The gateway dials it again then, and again after every further `_MAX_MISSED` misses."""


@dataclass(slots=True, eq=False)
class Replica:
    """Verifier with its state, updated by probes and failed calls."""

    verifier: VerifierClient
    endpoint: Endpoint
    info: VerifierInfo | None = None
    """Answer to the last probe; None while the verifier cannot serve."""
    condition: str = "connecting"
    """Result of the last probe or failed call."""
    running: int = 0
    """Number of this gateway's generations on the verifier."""
    missed: int = _MAX_MISSED
    """Number of probes missed since the last message from the verifier."""
    adapters: tuple[Adapter, ...] = ()
    """Adapters in its last answer, kept while the verifier cannot serve."""

    @property
    def state(self) -> str:
        """State: "ready", "connecting", "unreachable", "draining", or "refused: " and the reason."""
        return "draining" if self.endpoint.draining and self.info is not None else self.condition

    @property
    def ready(self) -> bool:
        """Whether the verifier accepts new sessions."""
        return self.info is not None and not self.endpoint.draining

    def mark_lost(self) -> bool:
        """Record a failed call; return whether the state changed."""
        return self._enter("unreachable", None)

    async def probe(self, tokenizer_hash: str) -> bool:
        """Probe the verifier; return whether its state changed.

        A verifier with another tokenizer is refused and gets no sessions. A verifier that misses a probe but sends a
        message for a generation meanwhile is alive: this process may lack CPU time to read the answer.
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
        self.adapters = info.adapters if info else self.adapters
        self.missed = 0 if info else max(self.missed, _MAX_MISSED)
        before, self.condition = self.condition, condition
        return condition != before


_LOAD_FACTOR = 1.25
"""Load bound of a verifier, as a multiple of its even share; a full one's sessions go to the next in their ranking."""

_log = structlog.get_logger()


class VerifierPool:
    """All known verifiers of a model, probed periodically; sessions use only the ready ones."""

    def __init__(
        self,
        tokenizer_hash: str,
        metrics: GatewayMetrics,
        pins: Pins | None = None,
        model: str = "",
        by_prefix: bool = True,
    ) -> None:
        """Create an empty pool.

        Args:
            tokenizer_hash: required tokenizer hash; other verifiers are refused.
            metrics: metrics of the gateway.
            pins: store of each session's verifier; None uses the ranking alone.
            model: name of the model, for metrics.
            by_prefix: whether new sessions are placed by the prefix of their prompt, and not by their id alone.
        """
        self._pins = pins
        self._by_prefix = by_prefix
        self._memory = PrefixMemory()
        self._model = model
        self._replicas: dict[str, Replica] = {}
        self._leaving: list[Replica] = []
        """Removed replicas, kept open while generations of this gateway run there."""
        self._tokenizer_hash = tokenizer_hash
        self._metrics = metrics
        metrics.verifiers_ready.labels(model).set_function(lambda: len(self.ready_addresses))
        self._unserved = metrics.unserved.labels(model)
        self._changed = asyncio.Event()
        self.known = asyncio.Event()
        """Set after the verifiers of the first snapshot have been probed."""

    @property
    def states(self) -> dict[str, str]:
        """State by address: "ready", "connecting", "unreachable", "draining", or "refused: " and the reason."""
        return {address: replica.state for address, replica in self._replicas.items()}

    @property
    def ready_addresses(self) -> set[str]:
        """Addresses of the ready verifiers."""
        return set(self._ready(""))

    @property
    def info(self) -> VerifierInfo:
        """Model and limits, from any ready verifier; see `info_under`."""
        return self.info_under("")

    def info_under(self, fingerprint: str) -> VerifierInfo:
        """Return model and limits from any ready verifier with this fingerprint; from any ready one if it is empty.

        Raises:
            NoVerifier: no such verifier is ready.
        """
        ready = self._ready(fingerprint)
        if not ready:
            raise NoVerifier(self._states_text())
        return next(iter(ready.values()))

    def serves(self, fingerprint: str) -> bool:
        """Whether a verifier with this fingerprint is ready; any one counts if it is empty."""
        return bool(self._ready(fingerprint))

    @property
    def adapters(self) -> dict[str, str]:
        """Fingerprint of each adapter of the known verifiers, by name; that of a ready one if there is one."""
        known = sorted(self._replicas.values(), key=lambda replica: replica.ready)
        return {each.name: each.system_fingerprint for replica in known for each in replica.adapters}

    @property
    def drafters(self) -> tuple[DrafterState, ...]:
        """Drafters of the ready verifiers, each once; ready if it is ready for any of them."""
        known = [drafter for info in self._ready("").values() for drafter in info.drafters]
        known.sort(key=lambda drafter: drafter.state == "ready")
        return tuple({drafter.address: drafter for drafter in known}.values())

    def prefix(self, call: GenerationCall, fingerprint: str) -> Prefix:
        """Return the prefix that places a generation; empty if there is no choice, or sessions are placed by id."""
        if not self._by_prefix or len(self.ready_addresses) < 2:
            return ()
        return prefix_of(call.tokens[: call.prompt_len], fingerprint, call.cache_salt)

    def note(self, verifier: VerifierClient, prefix: Prefix) -> None:
        """Record that `verifier` computes a prefix."""
        replica = self._replica_of(verifier)
        if replica is not None and prefix:
            self._memory.note(prefix, replica.endpoint.key)

    def verifier_for(
        self, session: str, system_fingerprint: str = "", avoid: Collection[str] = (), prefix: Prefix = ()
    ) -> tuple[VerifierClient, VerifierInfo]:
        """Choose a session's verifier by rendezvous hashing with bounded loads (Mirrokni et al., arXiv 1608.01350).

        Args:
            session: session id; an id keeps its verifier while that one is ready and below its load bound.
            system_fingerprint: required fingerprint of the verifier; empty for a new session.
            avoid: addresses to use only if no other verifier is ready.
            prefix: prefix of the prompt; a verifier that was chosen for it lately is chosen again.

        Raises:
            NoVerifier: no verifier is ready.
        """
        ready = self._ready(system_fingerprint)
        if not ready:
            raise NoVerifier(self._states_text())
        candidates = self._candidates(ready, avoid)
        address = candidates[self._ranked(session, candidates, prefix)]
        return self._replicas[address].verifier, ready[address]

    async def wait_for_verifier(
        self,
        session: str,
        system_fingerprint: str,
        seconds: float,
        avoid: Collection[str] = (),
        prefix: Prefix = (),
    ) -> tuple[VerifierClient, VerifierInfo]:
        """Choose like `verifier_for`, but wait up to `seconds` for a ready verifier.

        Raises:
            NoVerifier: no verifier became ready in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.verifier_for(session, system_fingerprint, avoid, prefix)
            except NoVerifier:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._unserved.inc()
                    raise
            await self.wait_for_change(left)

    async def pinned_verifier(
        self, verifier: VerifierClient, session: str, epoch: int, system_fingerprint: str, avoid: Collection[str]
    ) -> VerifierClient:
        """Return the session's last verifier if it is ready; otherwise pin and return `verifier`.

        A pin with an older `epoch` than the stored one changes nothing. The other arguments are as in `verifier_for`.
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
        """Count one generation on `verifier` inside the context, which keeps its connection open."""
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
        """Record a failed call: the verifier is not chosen again before it answers a probe."""
        replica = self._replica_of(verifier)
        if replica is not None and replica.mark_lost():
            self._publish(replica)

    async def wait_for_change(self, timeout: float) -> None:
        """Return when any verifier's state changes, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()

    async def follow(self, source: Source, dial: Callable[[str], VerifierClient]) -> None:
        """Keep the pool equal to the verifiers that `source` names, dialled with `dial`, until cancelled."""
        async with aclosing(source.snapshots()) as snapshots:
            async for endpoints in snapshots:
                _log.info("verifiers_found", addresses=[endpoint.address for endpoint in endpoints])
                self.replace(endpoints, dial)
                await self.probe()
                self.known.set()

    def replace(self, endpoints: Endpoints, dial: Callable[[str], VerifierClient]) -> None:
        """Dial new verifiers; removed ones are closed after the last of this gateway's generations there."""
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
        """Probe all verifiers every `every` seconds, until cancelled."""
        while True:
            await self.probe()
            await asyncio.sleep(every)

    async def probe(self) -> None:
        """Probe every verifier once, and close removed ones without generations."""
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
        """Log a new state, export it and wake the waiters; ignore removed replicas."""
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
        """Return the ready verifiers' addresses by discovery key, without those to avoid unless none is left."""
        return {self._replicas[address].endpoint.key: address for address in ready.keys() - set(avoid) or ready.keys()}

    def _ranked(self, session: str, candidates: Mapping[str, str], prefix: Prefix) -> str:
        """Return the key of a candidate whose load is below the bound.

        It is one with the longest known prefix, or else the first in the ranking by prefix or session.
        """
        loads = {key: self._replicas[address].running for key, address in candidates.items()}
        bound = math.ceil(_LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads))
        known = self._memory.choice(prefix, loads, bound)
        return known or next(key for key in ranking(ranking_key(prefix, session), loads) if loads[key] < bound)

    def _replica_of(self, verifier: VerifierClient) -> Replica | None:
        known = (*self._replicas.values(), *self._leaving)
        return next((replica for replica in known if replica.verifier is verifier), None)

    def _ready(self, system_fingerprint: str) -> dict[str, VerifierInfo]:
        """Return the ready verifiers with this fingerprint, by address; all ready ones if it is empty.

        A verifier has the fingerprints of its adapters, too; the facts returned have the required one.
        """
        return {
            address: info
            for address, replica in self._replicas.items()
            if replica.ready and replica.info is not None and (info := replica.info.under(system_fingerprint))
        }

    def _states_text(self) -> str:
        states = ", ".join(f"{address} is {state}" for address, state in self.states.items())
        return f"no verifier is ready: {states or 'none is known'}"
