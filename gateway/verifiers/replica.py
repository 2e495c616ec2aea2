"""One verifier replica and what the gateway knows of it."""

import time
from dataclasses import dataclass

from gateway.verifiers.client import VerifierClient, VerifierRefused
from specdec.errors import DeadlineExceeded, Draining, SpecdecError
from specdec.serving.discovery import Endpoint
from specdec.wire.generation import VerifierInfo

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
