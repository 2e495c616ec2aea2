"""Which verifier serves a session: the ready ones are known, and a session keeps to one of them."""

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gateway.metrics import GatewayMetrics
from gateway.verifier import Verifier, VerifierInfo
from specdec.errors import NoVerifier, SpecdecError

INFO_TIMEOUT = 2.0
"""Seconds a verifier has to tell its facts."""

_log = structlog.get_logger()


def rendezvous(key: str, members: Iterable[str]) -> str:
    """The member with the highest hash for `key`: when one leaves, only its own keys move."""
    return max(members, key=lambda member: hashlib.blake2b(f"{key}\0{member}".encode(), digest_size=8).digest())


@dataclass(slots=True)
class _Replica:
    """One verifier and what is known of it."""

    verifier: Verifier
    info: VerifierInfo | None = None
    state: str = "connecting"


class VerifierPool:
    """A fixed list of verifiers, looked at again and again; only the ready ones are chosen."""

    def __init__(self, verifiers: Sequence[Verifier], tokenizer_hash: str, metrics: GatewayMetrics) -> None:
        self._replicas = {verifier.address: _Replica(verifier) for verifier in verifiers}
        self._tokenizer_hash = tokenizer_hash
        self._metrics = metrics
        self._changed = asyncio.Event()

    @property
    def states(self) -> dict[str, str]:
        """Address to "ready", "connecting", "unreachable" or "refused: ..."."""
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
        """The verifier of a session.

        Args:
            session: keeps to its verifier while that one is ready.
            system_fingerprint: of the verifier it began with; empty when it begins now.
            avoid: addresses taken only when there is no other.

        Raises:
            NoVerifier: none is ready.
        """
        ready = self._ready(system_fingerprint)
        if not ready:
            raise NoVerifier(self._why())
        address = rendezvous(session, ready.keys() - set(avoid) or ready)
        return self._replicas[address].verifier, ready[address]

    def lost(self, verifier: Verifier) -> None:
        """It failed a call: not chosen again before it has answered a look."""
        self._note(self._replicas[verifier.address], None, "unreachable")

    async def wait_for_change(self, timeout: float) -> None:
        """Return when some verifier's state has changed, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()

    async def watch(self, every: float) -> None:
        """Look at all verifiers, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(every)

    async def look(self) -> None:
        """Look at every verifier once."""
        await asyncio.gather(*(self._look_at(replica) for replica in self._replicas.values()))

    async def close(self) -> None:
        """Let all connections go."""
        await asyncio.gather(*(replica.verifier.close() for replica in self._replicas.values()))

    async def _look_at(self, replica: _Replica) -> None:
        try:
            info = await replica.verifier.info(INFO_TIMEOUT)
        except SpecdecError:
            self._note(replica, None, "unreachable")
            return
        if info.tokenizer_hash != self._tokenizer_hash:
            self._note(replica, None, "refused: its tokenizer is not this gateway's")
        else:
            self._note(replica, info, "ready")

    def _note(self, replica: _Replica, info: VerifierInfo | None, state: str) -> None:
        replica.info = info
        self._metrics.verifier_up.labels(replica.verifier.address).set(info is not None)
        if replica.state == state:
            return
        log = _log.error if state.startswith("refused") else _log.info
        log("verifier_state", address=replica.verifier.address, state=state, before=replica.state)
        replica.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    def _ready(self, system_fingerprint: str) -> dict[str, VerifierInfo]:
        return {
            address: replica.info
            for address, replica in self._replicas.items()
            if replica.info is not None and system_fingerprint in ("", replica.info.system_fingerprint)
        }

    def _why(self) -> str:
        states = ", ".join(f"{address} is {state}" for address, state in self.states.items())
        return f"no verifier is ready: {states}"
