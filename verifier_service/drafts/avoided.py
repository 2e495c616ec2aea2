"""The drafters that a session stays away from for a while, and why."""

import math
from collections.abc import Callable, Container

from specdec.wire.generation import Fallback
from specdec.wire.session import NackReason
from verifier_service.config import DraftingSettings


class Avoided:
    """Addresses of drafters that have refused one session."""

    def __init__(self, settings: DraftingSettings, clock: Callable[[], float]) -> None:
        """`settings` say for how long; `clock` gives seconds."""
        self._settings = settings
        self._clock = clock
        self._until: dict[str, tuple[float, Fallback]] = {}
        """Until when to avoid each drafter, and why, by address."""
        self._forgotten = 0
        """How often in a row a drafter did not know the session."""

    def addresses(self) -> Container[str]:
        """Those that are avoided now."""
        if self._until:
            now = self._clock()
            self._until = {address: until for address, until in self._until.items() if until[0] > now}
        return self._until

    @property
    def overloaded(self) -> bool:
        """Whether one of them had no room."""
        return Fallback.OVERLOADED in {reason for _, reason in self._until.values()}

    def add(self, address: str, reason: NackReason) -> None:
        """Avoid a drafter that has refused the session, for a time that depends on the reason."""
        now, pause = self._clock(), self._settings.overload_pause
        match reason:
            case NackReason.OVERLOADED:
                self._until[address] = now + pause, Fallback.OVERLOADED
            case NackReason.MALFORMED:
                self._until[address] = math.inf, Fallback.UNAVAILABLE
            case NackReason.INTERNAL:
                self._until[address] = now + pause, Fallback.UNAVAILABLE
            case NackReason.UNKNOWN | NackReason.STALE:
                # The first time, opening the session again helps; after that it is tried less and less often.
                self._forgotten += 1
                pause = self._settings.probe * 2.0 ** min(self._forgotten - 2, 6) if self._forgotten > 1 else 0.0
                self._until[address] = now + pause, Fallback.UNAVAILABLE

    def known(self) -> None:
        """Note that a drafter knows the session."""
        self._forgotten = 0
