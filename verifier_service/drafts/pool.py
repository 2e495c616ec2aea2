"""Pool of drafter links, the choice of a drafter for each session, and the drafters that a session avoids."""

import asyncio
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import aclosing

import structlog

from specdec.serving.discovery import Source
from specdec.serving.rendezvous import ranking
from specdec.wire.generation import DrafterState, Fallback
from specdec.wire.session import NackReason
from verifier_service.config import DraftingSettings
from verifier_service.drafts.client import DrafterClient, Identity
from verifier_service.drafts.link import DrafterLink, LinkState
from verifier_service.speculation.costs import DraftedRounds, DrafterTimes

_NEAR = 0.001
"""Seconds by which a round trip may exceed the least one and still count as near. Zones often differ by more."""
_LONGEST_STEP = 10.0
"""Cap on a reported draft step, in seconds. Reports of drafters are not trusted above it."""
_LANGUAGE_MODELS = ("model", "head", "hybrid")
"""Drafter kinds that include a language model or a head of one."""
_ANSWERED = (LinkState.READY, LinkState.REFUSED, LinkState.UNAUTHENTICATED)
_LOAD_FACTOR = 1.25
"""Load limit of a near drafter, as a multiple of the mean number of sessions. At the limit it is not preferred."""

_log = structlog.get_logger()


class DrafterPool:
    """The links to all known drafters."""

    def __init__(self, links: Iterable[DrafterLink] = (), *, expected: bool = True) -> None:
        """Create a pool.

        Args:
            links: links to the drafters known at the start.
            expected: whether drafters should be present. If False, a drafter that has never answered is no fault.
        """
        self._expected = expected
        self.rounds: Callable[[str], DraftedRounds] = lambda source: DraftedRounds()
        """Returns the acceptance and plain round time for drafts of a source."""
        self._by_address = {link.address: link for link in links}

    async def follow(self, source: Source, make_link: Callable[[str], DrafterLink], identity: Identity) -> None:
        """Keep one link and one client for each drafter that `source` lists, until cancelled.

        Sessions of a drafter that disappears or drains move to other drafters.
        """
        clients: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks, aclosing(source.snapshots()) as snapshots:
            async for endpoints in snapshots:
                wanted = {endpoint.address for endpoint in endpoints if not endpoint.draining}
                _log.info("drafters_found", addresses=sorted(wanted))
                for address in clients.keys() - wanted:
                    clients.pop(address).cancel()
                    self._by_address.pop(address).gone()
                for address in sorted(wanted - clients.keys()):
                    self._by_address[address] = make_link(address)
                    clients[address] = tasks.create_task(DrafterClient(self._by_address[address], identity).run())

    def choose(self, session_id: str, avoid: Container[str], name: str = "") -> DrafterLink | None:
        """Return the session's drafter link by rendezvous hashing, or None if no drafter is ready.

        Addresses in `avoid` are skipped. With a `name`, only drafters of this kind, model or address qualify. Without
        one, language models are preferred, and other kinds are used only when no language model is ready.

        A session keeps its drafter as long as that drafter is ready, so only the sessions of a lost drafter move. Near
        drafters are preferred to those in other zones until their load is too high.
        """
        ready = list(self._ready(avoid, name))
        if len(ready) < 2:  # skip hashing: every plan of a batch calls this for each session
            return ready[0] if ready else None
        usual = ready if name else _usual(ready)
        candidates = [link.address for link in _near(usual) or usual]
        return self._by_address[ranking(session_id, candidates)[0]] if candidates else None

    def has(self, avoid: Container[str], name: str = "") -> bool:
        """Whether `choose` finds a link. Cheaper than `choose`."""
        return any(True for _ in self._ready(avoid, name))

    def absence(self) -> Fallback:
        """Return the reason that `choose` finds no link."""
        if not (self._expected or self._relevant):
            return Fallback.NO_MATCH
        states = {link.state for link in self._links}
        if LinkState.REFUSED in states and LinkState.READY not in states:
            return Fallback.TOKENIZER
        return Fallback.UNAVAILABLE

    def names(self) -> set[str]:
        """Return the names by which a request can select one of these drafters."""
        return set[str]().union(*(link.names for link in self._links))

    def times(self) -> DrafterTimes:
        """Return the mean step time and round trip of the ready drafters that serve sessions without a drafter name.

        Drafters that have not reported a step time do not count in the mean step time.
        """
        ready = _usual([link for link in self._links if link.state is LinkState.READY])
        steps = [min(link.step_seconds, _LONGEST_STEP) for link in ready if link.step_seconds > 0]
        round_trip = sum(link.distance for link in ready) / len(ready) if ready else 0.0
        return DrafterTimes(sum(steps) / len(steps) if steps else None, round_trip)

    def states(self) -> list[DrafterState]:
        """Return the state of every drafter, or only of those that have answered if none is expected."""
        return [link.drafter_state for link in self._relevant]

    def _ready(self, avoid: Container[str], name: str) -> Iterator[DrafterLink]:
        """Yield the ready links with the name (all if it is empty), except addresses in `avoid`."""
        for link in self._links:
            if link.state is LinkState.READY and link.address not in avoid and (not name or name in link.names):
                yield link

    @property
    def _relevant(self) -> list[DrafterLink]:
        """All links, or only those that have connected or been refused if no drafter is expected."""
        return [link for link in self._links if self._expected or link.model or link.state in _ANSWERED]

    @property
    def _links(self) -> Iterable[DrafterLink]:
        return self._by_address.values()


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


def _usual(links: Sequence[DrafterLink]) -> Sequence[DrafterLink]:
    """Return the links of language models, or all links if there are none."""
    return [link for link in links if link.kind in _LANGUAGE_MODELS] or links


def _near(links: Sequence[DrafterLink]) -> list[DrafterLink]:
    """Return the nearest links without the overloaded ones, or an empty list if all links are equally near."""
    reach = min((link.distance for link in links), default=0.0) + _NEAR
    near = [link for link in links if link.distance <= reach]
    if len(near) == len(links):
        return []
    most = math.ceil(_LOAD_FACTOR * (sum(link.sessions for link in links) + 1) / len(links))
    return [link for link in near if link.sessions < most]
