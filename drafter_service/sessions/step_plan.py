"""Which sessions take part in the next step, and with how many tokens, so that no verifier takes another's share."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import ScheduledSession


@dataclass(frozen=True, slots=True, eq=False)
class Wanting:
    """A session that wants a draft."""

    verifier: str
    """Whose session it is."""
    session: DraftSession
    pending: int
    """Its tokens that are not computed yet."""


class Credits:
    """Divides what a step can do among the verifiers that want some of it, evenly over time.

    While there is enough for all, everyone gets what they want, and nothing is counted.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        """Credits that each verifier has used since credits were last short, of those that still want some."""

    def divide(self, wanted: Mapping[str, int], room: int) -> dict[str, int]:
        """How much of `room` each verifier gets.

        Those who have used least come first, and what one does not need is left to the others. A verifier that comes
        back has used as little as anyone there: it is owed nothing for the time when it wanted nothing.
        """
        if sum(wanted.values()) <= room:
            return dict(wanted)
        least = min((self._used[each] for each in wanted if each in self._used), default=0)
        used = {each: self._used.get(each, least) - least for each in wanted}
        given = _filled(wanted, used, room)
        self._used = {each: used[each] + given[each] for each in wanted}
        return given


def _filled(wanted: Mapping[str, int], used: Mapping[str, int], room: int) -> dict[str, int]:
    """Fill everyone's use up to one level, as far as they want, so that all of `room` is given."""

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
    """Chooses the batch of each step; verifiers share it by credits, one for each token that is computed."""

    def __init__(self, step_sessions: int, chunk_tokens: int) -> None:
        """Begin with nothing used.

        Args:
            step_sessions: most sessions in one pass that need one token each.
            chunk_tokens: most tokens in one pass beyond those.
        """
        self._step_sessions = step_sessions
        self._chunk_tokens = chunk_tokens
        self._steps, self._prompts = Credits(), Credits()

    def plan(self, wanting: Iterable[Wanting]) -> list[ScheduledSession]:
        """Choose the batch of the next step.

        While any verifier waits for a draft, only the sessions that are waited for run; drafting ahead uses the time
        that is left. Of the sessions that need one token, those go first that were asked for first. The others share
        `chunk_tokens`, those that need least first, so that a long prompt delays nobody by more than its share of a
        pass.
        """
        waiting = list(wanting)
        if any(each.session.verifier_waits for each in waiting):
            waiting = [each for each in waiting if each.session.verifier_waits]
        ready = sorted((each for each in waiting if each.pending == 1), key=lambda each: each.session.asked_at)
        behind = sorted((each for each in waiting if each.pending != 1), key=lambda each: each.pending)
        return [
            *_batch(ready, self._steps, self._step_sessions),
            *_batch(behind, self._prompts, self._chunk_tokens),
        ]


def _batch(wanting: list[Wanting], credits: Credits, room: int) -> list[ScheduledSession]:
    """What each session gets of its verifier's share of `room`, in the order given."""
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
