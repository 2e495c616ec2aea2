"""One verifier and what is known of it."""

from dataclasses import dataclass

from gateway.verifiers.verifier import Verifier, VerifierInfo
from specdec.errors import DeadlineExceeded, Draining, SpecdecError
from specdec.serving.discovery import Endpoint

INFO_TIMEOUT = 2.0
"""Seconds a verifier has to tell its facts."""
_MISSES = 3
"""Looks without an answer in time before a ready verifier counts as unreachable: a busy machine is not a dead one."""


@dataclass(slots=True, eq=False)
class Replica:
    """Its state changes by looks at it, and by calls it fails."""

    verifier: Verifier
    endpoint: Endpoint
    info: VerifierInfo | None = None
    """What it said of itself, while it is of use."""
    condition: str = "connecting"
    running: int = 0
    """Generations of this gateway."""
    missed: int = _MISSES
    """Looks without an answer since it last gave one."""

    @property
    def state(self) -> str:
        """As people are told."""
        return "draining" if self.endpoint.draining and self.info is not None else self.condition

    @property
    def ready(self) -> bool:
        """Whether new sessions may go there."""
        return self.info is not None and not self.endpoint.draining

    def lost(self) -> bool:
        """It failed a call; whether that is news."""
        return self._enter("unreachable", None)

    async def look(self, tokenizer_hash: str) -> bool:
        """Ask for its facts; whether they changed its state.

        One that speaks another tokenizer is refused for as long as it says so: no session is ever tried on it.
        """
        try:
            info = await self.verifier.info(INFO_TIMEOUT)
        except Draining:
            return self._enter("draining", None)
        except DeadlineExceeded:
            self.missed += 1
            return self.missed >= _MISSES and self._enter("unreachable", None)
        except SpecdecError:
            return self._enter("unreachable", None)
        if info.tokenizer_hash != tokenizer_hash:
            reason = f"its tokenizer is not this gateway's ({info.model}: {info.tokenizer_hash}, not {tokenizer_hash})"
            return self._enter(f"refused: {reason}", None)
        return self._enter("ready", info)

    def _enter(self, condition: str, info: VerifierInfo | None) -> bool:
        self.info = info
        self.missed = 0 if info else _MISSES
        before, self.condition = self.condition, condition
        return condition != before
