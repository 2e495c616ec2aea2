"""Where a turn is, as one gateway sees it, and which state may follow which: the table of docs/architecture.md."""

from collections.abc import Mapping, Set
from enum import StrEnum

from specdec.errors import InternalError


class TurnState(StrEnum):
    """What a gateway does with a turn."""

    OPENED = "opened"
    """It knows the turn, and nothing of its rounds."""
    READING = "reading"
    """It reads what is committed from the session store."""
    GENERATING = "generating"
    """It tries to own the turn, owns it, and generates it at one verifier after the other."""
    FOLLOWING = "following"
    """It publishes what another gateway, the owner, commits."""
    FINISHED = "finished"
    """Everything was published."""
    STOPPED = "stopped"
    """It left the turn as it stands: no reader, a drain, a shutdown."""
    FAILED = "failed"
    """Readers have got an error; what is committed stays, and the turn can be resumed."""


_RUNNING = frozenset({TurnState.STOPPED, TurnState.FAILED})
"""What may follow every state that is no end."""
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
    """`then`, where it may follow `now`; raises InternalError where it may not."""
    if then not in TRANSITIONS[now]:
        raise InternalError(f"a turn that is {now} cannot be {then}")
    return then
