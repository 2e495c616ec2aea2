"""States of a turn in one gateway, and the allowed transitions; docs/architecture.md has the table."""

from collections.abc import Mapping, Set
from enum import StrEnum

from specdec.errors import InternalError


class TurnState(StrEnum):
    """State of a turn in this gateway."""

    OPENED = "opened"
    """The turn is known, its rounds are not."""
    READING = "reading"
    """The gateway reads the committed rounds from the session store."""
    GENERATING = "generating"
    """The gateway acquires the turn and generates it, at one verifier after another."""
    FOLLOWING = "following"
    """The gateway publishes the rounds that the owner, another gateway, commits."""
    FINISHED = "finished"
    """All events were published."""
    STOPPED = "stopped"
    """The gateway stopped before the turn's end: no reader, a drain, or a shutdown."""
    FAILED = "failed"
    """Readers received an error. Committed rounds stay, and the turn can be resumed."""


_RUNNING = frozenset({TurnState.STOPPED, TurnState.FAILED})
"""States that may follow every non-final state."""
TRANSITIONS: Mapping[TurnState, Set[TurnState]] = {
    TurnState.OPENED: _RUNNING | {TurnState.READING, TurnState.GENERATING},
    TurnState.READING: _RUNNING | {TurnState.GENERATING, TurnState.FINISHED},
    TurnState.GENERATING: _RUNNING | {TurnState.FOLLOWING, TurnState.READING, TurnState.FINISHED},
    TurnState.FOLLOWING: _RUNNING | {TurnState.GENERATING, TurnState.FINISHED},
    TurnState.FINISHED: frozenset(),
    TurnState.STOPPED: frozenset(),
    TurnState.FAILED: frozenset(),
}


def following(now: TurnState, then: TurnState) -> TurnState:
    """Return `then`; raises InternalError if it may not follow `now`."""
    if then not in TRANSITIONS[now]:
        raise InternalError(f"a turn that is {now} cannot be {then}")
    return then
