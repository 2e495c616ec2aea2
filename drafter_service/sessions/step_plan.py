"""Selection of the sessions and token counts of the next step, with a fair share for each verifier."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import ScheduledSession


@dataclass(frozen=True, slots=True, eq=False)
class Wanting:
    """A session that wants a draft."""

    verifier: str
    """Verifier that owns the session."""
    session: DraftSession
    pending: int
    """Number of the session's tokens that are not computed yet."""


class Credits:
    """Divides the capacity of a step among the verifiers that want it, evenly over time.

    While capacity suffices for all, each verifier gets what it wants and no use is recorded.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        """Credits used by each active verifier since capacity was last short."""

    def divide(self, wanted: Mapping[str, int], room: int) -> dict[str, int]:
        """Return each verifier's share of `room`.

        Verifiers that have used least come first, and unused shares go to the others. A returning verifier starts at
        the lowest recorded use, so it gets no credit for its idle time.
        """
        if sum(wanted.values()) <= room:
            return dict(wanted)
        least = min((self._used[each] for each in wanted if each in self._used), default=0)
        used = {each: self._used.get(each, least) - least for each in wanted}
        given = _filled(wanted, used, room)
        self._used = {each: used[each] + given[each] for each in wanted}
        return given


def _filled(wanted: Mapping[str, int], used: Mapping[str, int], room: int) -> dict[str, int]:
    """Raise every verifier's use to one level, as far as it wants, so that all of `room` is given."""

    def up_to(level: int) -> dict[str, int]:
        return {each: min(max(level - used[each], 0), wanted[each]) for each in wanted}

    low, high = 0, max(used.values()) + room
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(up_to(middle).values()) <= room else (low, middle - 1)
    given = up_to(low)
    more = [each for each in wanted if used[each] <= low and given[each] < wanted[each]]
    for each in more[: room - sum(given.values())]:
        given[each] += 1
    return given


class StepPlanner:
    """Chooses the batch of each step. Verifiers share it by credits, one for each computed token."""

    def __init__(self, step_sessions: int, chunk_tokens: int) -> None:
        """Start with no recorded use.

        Args:
            step_sessions: maximum number of sessions in one pass that need one token each.
            chunk_tokens: maximum number of further tokens in one pass.
        """
        self._step_sessions = step_sessions
        self._chunk_tokens = chunk_tokens
        self._steps, self._prompts = Credits(), Credits()

    def plan(self, wanting: Iterable[Wanting]) -> list[ScheduledSession]:
        """Choose the batch of the next step.

        While any verifier waits for a draft, only sessions with a pending request run; drafting ahead uses idle time.
        Sessions that need one token run in the order of their requests. The others share `chunk_tokens`, shortest
        first, so that a long prompt delays the other sessions by no more than its share of a pass.
        """
        waiting = list(wanting)
        if any(each.session.verifier_waits for each in waiting):
            waiting = [each for each in waiting if each.session.verifier_waits]
        ready = sorted((each for each in waiting if each.pending == 1), key=lambda each: each.session.asked_at)
        longer = sorted((each for each in waiting if each.pending != 1), key=lambda each: each.pending)
        return [
            *_batch(ready, self._steps, self._step_sessions),
            *_batch(longer, self._prompts, self._chunk_tokens),
        ]


def _batch(wanting: list[Wanting], credits: Credits, room: int) -> list[ScheduledSession]:
    """Schedule sessions, in the order given, within their verifiers' shares of `room`."""
    wanted = Counter[str]()
    for each in wanting:
        wanted[each.verifier] += each.pending
    left = credits.divide(wanted, room)
    batch: list[ScheduledSession] = []
    for each in wanting:
        count = min(each.pending, left[each.verifier])
        if count:
            batch.append(ScheduledSession(each.session, count))
            left[each.verifier] -= count
    return batch
