"""Which sessions take part in the next step, and with how many tokens: a pure policy."""

from collections.abc import Iterable

from drafter_service.drafters.base import Work
from drafter_service.sessions.session import Session


def plan(wanting: Iterable[tuple[Session, int]], chunk_tokens: int) -> list[Work]:
    """Choose the batch.

    Drafting ahead uses time that nobody waits in: while a verifier waits for anything, only what is waited for runs.
    Sessions that need one token always run; the others share `chunk_tokens`, those that need least first, so that a
    long prompt delays nobody by more than its share of a pass.

    Args:
        wanting: sessions that want a draft, each with its number of tokens without KV.
        chunk_tokens: tokens in one pass beyond those of the sessions that need one.
    """
    waiting = list(wanting)
    if any(session.urgent for session, _ in waiting):
        waiting = [(session, pending) for session, pending in waiting if session.urgent]
    batch: list[Work] = []
    room = chunk_tokens
    for session, pending in sorted(waiting, key=lambda item: item[1]):
        count = 1 if pending == 1 else min(pending, room)
        if not count:
            break
        batch.append(Work(session, count))
        room -= count if pending > 1 else 0
    return batch
