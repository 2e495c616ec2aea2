"""A turn changes state only as the table allows."""

import pytest

from gateway.turns.turn_stream import TRANSITIONS, TurnState, following
from specdec.errors import InternalError

ENDS = {TurnState.FINISHED, TurnState.STOPPED, TurnState.FAILED}


@pytest.mark.parametrize("now", TurnState)
@pytest.mark.parametrize("then", TurnState)
def test_a_state_follows_where_the_table_has_it(now: TurnState, then: TurnState) -> None:
    if then in TRANSITIONS[now]:
        assert following(now, then) is then
    else:
        with pytest.raises(InternalError, match=f"is {now} cannot be {then}"):
            following(now, then)


def test_nothing_follows_an_end_and_every_other_state_can_reach_one() -> None:
    assert {state for state in TurnState if not TRANSITIONS[state]} == ENDS
    assert all(TRANSITIONS[state] & ENDS == ENDS for state in TurnState if state not in ENDS | {TurnState.OPENED})
