"""Which sessions take part in the next step, and with how many tokens."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from drafter_service.sessions.credits import Credits
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
