"""Drafters that a session avoids for a while, because they refused it."""

import math
from collections.abc import Callable, Container

from specdec.wire.generation import Fallback
from specdec.wire.session import NackReason
from verifier_service.config import DraftingSettings


class AvoidedDrafters:
    """Addresses of the drafters that one session avoids after a refusal."""

    def __init__(self, settings: DraftingSettings, clock: Callable[[], float]) -> None:
        """Create an empty set; `settings` hold the pauses, and `clock` returns seconds."""
        self._settings = settings
        self._clock = clock
        self._until: dict[str, tuple[float, Fallback]] = {}
        """Time until which to avoid each drafter, and the reason, by address."""
        self._forgotten = 0
        """Number of consecutive refusals by drafters that did not know the session."""

    def addresses(self) -> Container[str]:
        """Return the addresses to avoid now."""
        if self._until:
            now = self._clock()
            self._until = {address: until for address, until in self._until.items() if until[0] > now}
        return self._until

    @property
    def overloaded(self) -> bool:
        """Whether an avoided drafter was overloaded."""
        return Fallback.OVERLOADED in {reason for _, reason in self._until.values()}

    def add(self, address: str, reason: NackReason) -> None:
        """Avoid a drafter that refused the session, for a period that depends on the reason."""
        now, pause = self._clock(), self._settings.overload_pause
        match reason:
            case NackReason.OVERLOADED:
                self._until[address] = now + pause, Fallback.OVERLOADED
            case NackReason.MALFORMED:
                self._until[address] = math.inf, Fallback.UNAVAILABLE
            case NackReason.INTERNAL:
                self._until[address] = now + pause, Fallback.UNAVAILABLE
            case NackReason.UNKNOWN | NackReason.STALE:
                # Reopen the session at once after the first refusal, then back off exponentially.
                self._forgotten += 1
                pause = self._settings.probe * 2.0 ** min(self._forgotten - 2, 6) if self._forgotten > 1 else 0.0
                self._until[address] = now + pause, Fallback.UNAVAILABLE

    def known(self) -> None:
        """Reset the back-off: a drafter knows the session."""
        self._forgotten = 0
