"""Which sessions take part in the next step, and with how many tokens: a pure policy."""

from collections.abc import Iterable

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import ScheduledSession


def plan_step(wanting: Iterable[tuple[DraftSession, int]], chunk_tokens: int) -> list[ScheduledSession]:
    """Choose the batch of the next step.

    While any verifier waits for a draft, only the sessions that are waited for run; drafting ahead uses the time that
    is left. Sessions that need one token always run; the others share `chunk_tokens`, those that need least first, so
    that a long prompt delays nobody by more than its share of a pass.

    Args:
        wanting: sessions that want a draft, each with the number of its tokens that are not computed yet.
        chunk_tokens: most tokens in one pass beyond those of the sessions that need one.
    """
    waiting = list(wanting)
    if any(session.verifier_waits for session, _ in waiting):
        waiting = [(session, pending) for session, pending in waiting if session.verifier_waits]
    batch: list[ScheduledSession] = []
    room = chunk_tokens
    for session, pending in sorted(waiting, key=lambda item: item[1]):
        count = 1 if pending == 1 else min(pending, room)
        if not count:
            break
        batch.append(ScheduledSession(session, count))
        room -= count if pending > 1 else 0
    return batch
