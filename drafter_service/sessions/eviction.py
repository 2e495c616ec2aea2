"""Which session has to go when a drafter has no more room."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from drafter_service.sessions.draft_session import DraftSession

Owned = Collection[tuple[str, DraftSession]]
"""Sessions with the verifier that each belongs to."""


def least_recent(sessions: Iterable[DraftSession], before: float) -> DraftSession | None:
    """The session longest unheard of, since `before`, that holds memory and that no verifier waits for."""
    candidates = [
        session
        for session in sessions
        if session.admitted and not session.verifier_waits and session.last_message <= before
    ]
    return min(candidates, key=lambda session: session.last_message, default=None)


def owed(sessions: Owned, verifier: str, more: int, size: Callable[[DraftSession], int]) -> DraftSession | None:
    """What the verifier that holds most gives back to one that holds less, even with `more`; None when none does.

    A verifier may use what nobody else needs, and keeps no more than the others want to have, too. It gives back what
    it waits for last of all.

    Args:
        size: what a session holds, in the unit of `more`.
    """
    held = Counter[str]()
    for owner, session in sessions:
        held[owner] += size(session)
    most = max(held, key=lambda owner: held[owner], default=verifier)
    if held[verifier] + more >= held[most]:
        return None
    given = [session for owner, session in sessions if owner == most and size(session)]
    return min(given, key=lambda session: (session.verifier_waits, session.last_message))
