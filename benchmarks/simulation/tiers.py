"""A discrete-event simulation of drafters, verifiers and gateways: queues, batches and the formulas of their costs.

The simulation has the protocol's shape without its bytes. A session's round waits for its draft or the timeout, joins
its verifier's next batch, and is committed by its gateway. No component waits on purpose. Drafting ahead in idle time
is left out, so the simulated speeds are on the low side.
"""

import heapq
import random
from collections.abc import Callable
from itertools import count

from benchmarks.simulation.world import Server, Session, World


class Tiers:
    """The whole simulated system."""

    def __init__(self, world: World, verifiers: int, drafters: int, gateways: int = 1, seed: int = 0) -> None:
        self.world = world
        self.now = 0.0
        self.random = random.Random(seed)
        self.verifiers = [Server() for _ in range(verifiers)]
        self.drafters = [Server() for _ in range(drafters)]
        self.loading = 0
        """Number of drafters whose models are loading."""
        self.sessions: list[Session] = []
        self.counters: dict[str, float] = dict.fromkeys(_COUNTED, 0.0)
        self._gateways = [0.0] * gateways
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._numbers = count()

    # Actions of a scenario.

    def open(self, sessions: int) -> None:
        """Open `sessions` sessions."""
        for _ in range(sessions):
            session = Session(self._least(self.verifiers), None, self.random.randrange(len(self._gateways)))
            session.verifier.members.add(session)
            self._assign_drafter(session, at=0.0)
            self.sessions.append(session)
            self.at(self.now + self.random.random() * 0.05, self._begin, session)

    def close(self, sessions: int) -> None:
        """Close `sessions` sessions."""
        for _ in range(min(sessions, len(self.sessions))):
            session = self.sessions.pop(self.random.randrange(len(self.sessions)))
            session.active = False
            session.verifier.members.discard(session)
            if session.drafter:
                session.drafter.members.discard(session)

    def add_verifier(self) -> None:
        """Add a verifier and give it its share of the sessions: generations end, and new ones start there."""
        server = Server()
        self.verifiers.append(server)
        for session in self.sessions:
            if self.random.random() < 1 / len(self.verifiers):
                self._move(session, server)

    def load_drafter(self, seconds: float) -> None:
        """Add a drafter after the time to load its model."""
        self.loading += 1
        self.at(self.now + seconds, self._loaded)

    def _loaded(self) -> None:
        self.loading -= 1
        self.add_drafter()

    def add_drafter(self) -> None:
        """Add a drafter. Its share of the sessions moves to it, and no other session moves."""
        server = Server()
        self.drafters.append(server)
        for session in self.sessions:
            if self.random.random() < 1 / len(self.drafters):
                self._assign_drafter(session, self.now + self.world.reopen_drafter, server)

    def lose_drafter(self) -> None:
        """Remove a drafter.

        Its sessions continue at once, without drafts until another drafter has read their tokens.
        """
        server = self.drafters.pop()
        server.alive = False
        for session in list(server.members):
            self._assign_drafter(session, self.now + self.world.reopen_drafter)
        for session, number in server.queue:
            self._join(session, number, 0)

    def lose_verifier(self) -> None:
        """Remove a verifier. Its sessions move, and uncommitted tokens are lost."""
        server = self.verifiers.pop()
        server.alive = False
        for session in list(server.members):
            self._move(session, self._least(self.verifiers))

    def run(self, until: float) -> None:
        """Advance the simulated time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)
        self.now = until

    def at(self, when: float, action: Callable[..., None], *arguments: object) -> None:
        """Schedule an action."""
        heapq.heappush(self._events, (when, next(self._numbers), action, arguments))

    # The steps of a round.

    def _begin(self, session: Session) -> None:
        if not session.active:
            return
        session.round += 1
        number, drafter = session.round, session.drafter
        if drafter is None:
            self._join(session, number, 0)
            return
        self.counters["asked_rounds"] += 1
        if session.drafts_at > self.now:
            self._join(session, number, 0)
            return
        drafter.queue.append((session, number))
        if len(drafter.queue) / self.world.draft_batch * self.world.draft_seconds(self.world.draft_batch) > (
            self.world.timeout / 2
        ):
            self.at(self.now + self.world.timeout, self._give_up, session, number)
        self._draft(drafter)

    def _give_up(self, session: Session, number: int) -> None:
        if session.round == number:
            self._join(session, number, 0)

    def _draft(self, drafter: Server) -> None:
        if not (drafter.idle and drafter.alive):
            return
        batch: list[tuple[Session, int]] = []
        while drafter.queue and len(batch) < self.world.draft_batch:
            session, number = drafter.queue.popleft()
            if session.round == number:
                batch.append((session, number))
        if not batch:
            return
        drafter.idle = False
        seconds = self.world.draft_seconds(len(batch))
        self._count("draft", seconds, len(batch), self.world.gamma)
        self.at(self.now + seconds, self._drafted, drafter, batch)

    def _drafted(self, drafter: Server, batch: list[tuple[Session, int]]) -> None:
        drafter.idle = True
        trip = self.world.round_trip / 2
        for session, number in batch:
            drafts = self.world.gamma if drafter.alive else 0
            self.at(self.now + trip, self._join, session, number, drafts)
        self._draft(drafter)

    def _join(self, session: Session, number: int, drafts: int) -> None:
        """Join the verifier's next batch."""
        if session.round != number or not session.active:
            return
        session.round += 1
        session.drafted = drafts
        session.verifier.queue.append((session, session.round))
        self._verify(session.verifier)

    def _verify(self, verifier: Server) -> None:
        if not (verifier.idle and verifier.alive and verifier.queue):
            return
        size = min(len(verifier.queue), self.world.verify_batch)
        batch = [verifier.queue.popleft() for _ in range(size)]
        verifier.idle = False
        seconds = self.world.verify_seconds(sum(1 + session.drafted for session, _ in batch))
        self._count("verify", seconds, size, 1)
        self.at(self.now + seconds, self._verified, verifier, batch)

    def _verified(self, verifier: Server, batch: list[tuple[Session, int]]) -> None:
        verifier.idle = True
        if not verifier.alive:
            return
        for session, number in batch:
            if session.round == number:
                self._judge(session)
        self._verify(verifier)

    def _judge(self, session: Session) -> None:
        accepted = 0
        while accepted < session.drafted and self.random.random() < self.world.alpha:
            accepted += 1
        self.counters["tokens"] += accepted + 1
        self.counters["rounds"] += 1
        self.counters["accepted"] += accepted
        self.counters["recovered"] += accepted < session.drafted
        if session.drafted == 0 and session.drafter is not None:
            self.counters["starved"] += 1
        # The verifier runs slightly ahead of the gateway: a round begins once the previous one is committed.
        begins = max(self.now, session.committed_at) + self.world.round_trip / 2
        free = max(self._gateways[session.gateway], self.now) + self.world.commit
        self._gateways[session.gateway] = session.committed_at = free
        self.at(begins, self._begin, session)

    # Helper functions.

    def _move(self, session: Session, verifier: Server) -> None:
        session.verifier.members.discard(session)
        session.verifier = verifier
        verifier.members.add(session)
        session.round += 1
        self.at(self.now + self.world.reopen_verifier, self._begin, session)

    def _assign_drafter(self, session: Session, at: float, server: Server | None = None) -> None:
        if session.drafter:
            session.drafter.members.discard(session)
        session.drafter = server or (self.random.choice(self.drafters) if self.drafters else None)
        session.drafts_at = at
        if session.drafter:
            session.drafter.members.add(session)

    def _least(self, servers: list[Server]) -> Server:
        """Return a server by bounded load, so that none has much more than its share."""
        return min(self.random.sample(servers, min(2, len(servers))), key=lambda server: len(server.members))

    def _count(self, what: str, seconds: float, rows: int, steps: int) -> None:
        self.counters[f"{what}_seconds"] += seconds
        self.counters[f"{what}_steps"] += steps
        self.counters[f"{what}_rows"] += rows * steps


_COUNTED = (
    *("tokens", "rounds", "accepted", "recovered", "asked_rounds", "starved"),
    *("draft_seconds", "draft_steps", "draft_rows", "verify_seconds", "verify_steps", "verify_rows"),
)
