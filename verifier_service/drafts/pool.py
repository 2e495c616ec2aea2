"""The drafters that are known, and which of them a session uses."""

import asyncio
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import aclosing

import structlog

from specdec.serving.discovery import Source
from specdec.serving.rendezvous import ranking
from specdec.wire.generation import DrafterState, Fallback
from verifier_service.drafts.client import DrafterClient, Identity
from verifier_service.drafts.link import DrafterLink, LinkState
from verifier_service.speculation.costs import DraftedRounds, DrafterTimes

_NEAR = 0.001
"""Seconds beyond the least round trip that count as equal to it: less than that within a zone, often more between."""
_LONGEST_STEP = 10.0
"""Most seconds of a draft step that are believed: a drafter says of itself what it likes."""
_LANGUAGE_MODELS = ("model", "hybrid")
"""Kinds that know more than the text of the sequence and of a corpus."""
_ANSWERED = (LinkState.READY, LinkState.REFUSED, LinkState.UNAUTHENTICATED)
_LOAD_FACTOR = 1.25
"""A near drafter with this many times the mean number of sessions is no better than one that is far."""

_log = structlog.get_logger()


class DrafterPool:
    """The links to all drafters that are known."""

    def __init__(self, links: Iterable[DrafterLink] = (), *, expected: bool = True) -> None:
        """Begin with some links.

        Args:
            links: to the drafters that are known from the start.
            expected: whether drafters are to be there; otherwise one that has never answered is no fault.
        """
        self._expected = expected
        self.rounds: Callable[[str], DraftedRounds] = lambda source: DraftedRounds()
        """Says what rounds with the drafts of a source are like."""
        self._by_address = {link.address: link for link in links}

    async def follow(self, source: Source, make_link: Callable[[str], DrafterLink], identity: Identity) -> None:
        """Have a link, and a client of this identity, for exactly the drafters that `source` names; until cancelled.

        The sessions of a drafter that is gone or drains go to others.
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
        """The ready link of the greatest hash with the session, but for addresses in `avoid`; None when there is none.

        With a `name`, only drafters of this kind, model or address are chosen; without one, language models come first,
        and drafters of other kinds draft where no model can.

        A session keeps its drafter while that lives, and only a lost drafter's sessions move (rendezvous hashing).
        Where some drafters are far, in another zone, the near ones are used while their load allows it.
        """
        ready = list(self._ready(avoid, name))
        if len(ready) < 2:  # hashes take time, and each judgement of a batch asks for every session
            return ready[0] if ready else None
        usual = ready if name else _usual(ready)
        candidates = [link.address for link in _near(usual) or usual]
        return self._by_address[ranking(session_id, candidates)[0]] if candidates else None

    def has(self, avoid: Container[str], name: str = "") -> bool:
        """Whether `choose` finds a link, which takes less time than to find out which."""
        return any(True for _ in self._ready(avoid, name))

    def absence(self) -> Fallback:
        """Why `choose` finds no link."""
        if not (self._expected or self._relevant):
            return Fallback.NO_MATCH
        states = {link.state for link in self._links}
        if LinkState.REFUSED in states and LinkState.READY not in states:
            return Fallback.TOKENIZER
        return Fallback.UNAVAILABLE

    def names(self) -> set[str]:
        """The names by which a request can ask for one of these drafters."""
        return set[str]().union(*(link.names for link in self._links))

    def times(self) -> DrafterTimes:
        """What the ready drafters report, on average, of the kinds that draft for sessions which name none.

        Drafters that have not reported a step are left out.
        """
        ready = _usual([link for link in self._links if link.state is LinkState.READY])
        steps = [min(link.step_seconds, _LONGEST_STEP) for link in ready if link.step_seconds > 0]
        round_trip = sum(link.distance for link in ready) / len(ready) if ready else 0.0
        return DrafterTimes(sum(steps) / len(steps) if steps else None, round_trip)

    def states(self) -> list[DrafterState]:
        """State of every drafter; where none is expected, of those that have answered."""
        return [link.drafter_state for link in self._relevant]

    def _ready(self, avoid: Container[str], name: str) -> Iterator[DrafterLink]:
        """The ready links of a name, or all, but for addresses in `avoid`."""
        for link in self._links:
            if link.state is LinkState.READY and link.address not in avoid and (not name or name in link.names):
                yield link

    @property
    def _relevant(self) -> list[DrafterLink]:
        """The links that count: all, or where no drafter is expected those that have been connected or refused."""
        return [link for link in self._links if self._expected or link.model or link.state in _ANSWERED]

    @property
    def _links(self) -> Iterable[DrafterLink]:
        return self._by_address.values()


def _usual(links: Sequence[DrafterLink]) -> Sequence[DrafterLink]:
    """The links of language models; all where there is none."""
    return [link for link in links if link.kind in _LANGUAGE_MODELS] or links


def _near(links: Sequence[DrafterLink]) -> list[DrafterLink]:
    """The links of the least distance, without those of too high a load; empty when all are equally near."""
    reach = min((link.distance for link in links), default=0.0) + _NEAR
    near = [link for link in links if link.distance <= reach]
    if len(near) == len(links):
        return []
    most = math.ceil(_LOAD_FACTOR * (sum(link.sessions for link in links) + 1) / len(links))
    return [link for link in near if link.sessions < most]
