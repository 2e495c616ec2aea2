"""A store that contradicts itself ends a generation with a SpecdecError, after a bounded number of tries."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.store.values import Lease, RoundCommit, TurnView
from gateway.turns import turn_stream
from gateway.turns.events import Finished
from gateway.turns.turn_stream import MOST, TurnRetries, TurnStream
from specdec.errors import (
    Fenced,
    SessionDiverged,
    SessionHeld,
    SessionNotFound,
    SessionStoreDown,
    SpecdecError,
    TurnOver,
)
from tests.support.memory_sessions import MemorySessionStore
from tests.unit.gateway.turns.in_memory import TURN, events_of, header, open_turn, services

ANSWERS = 6
"""Maximum number of scripted answers of a store operation."""
CALLS = 5 * (MOST + 2 + 2 * (ANSWERS - 1))
"""Maximum number of calls of the store. A loss costs at most five: acquire the turn, a refused round, follow the
turn, acquire it again, and read it again. MOST + 2 losses follow the last progress. Each earlier loss used up an
answer of `acquire` or `commit`.
"""
LIES: dict[str, Callable[[], SpecdecError] | None] = {
    "as it is": None,
    "fenced": lambda: Fenced("epoch 1 is over"),
    "over": lambda: TurnOver("turn 1 is the last, and done"),
    "held": lambda: SessionHeld("another gateway has the session", 0.0),
    "diverged": lambda: SessionDiverged("the round differs"),
    "gone": lambda: SessionNotFound("no such session", "session"),
    "down": lambda: SessionStoreDown("bytes were changed"),
}


class LyingStore(MemorySessionStore):
    """Gives each operation its scripted answers, and repeats the last one."""

    def __init__(self, **answers: list[str]) -> None:
        super().__init__()
        self.answers = {operation: list(script) for operation, script in answers.items()}
        self.calls = 0

    async def _lie(self, operation: str, truth: Awaitable[Any]) -> Any:
        self.calls += 1
        answers = self.answers[operation]
        lie = LIES[answers.pop(0) if len(answers) > 1 else answers[0]]
        if lie is None:
            return await truth
        asyncio.ensure_future(truth).cancel()
        raise lie()

    async def acquire(self, session_id: str, owner: str, turn: int | None = None) -> Lease:
        found: Lease = await self._lie("acquire", super().acquire(session_id, owner, turn))
        return found

    async def commit(self, rounds: Sequence[RoundCommit]) -> Sequence[bool | SpecdecError]:
        found: Sequence[bool | SpecdecError]
        try:
            found = await self._lie("commit", super().commit(rounds))
        except SessionStoreDown:
            raise
        except SpecdecError as error:
            return [error]
        return found

    async def read(self, session_id: str, tenant: str, turn: int, after: int | None = None) -> TurnView:
        found: TurnView = await self._lie("read", super().read(session_id, tenant, turn, after))
        return found


@pytest.fixture(autouse=True, scope="module")
def _short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn_stream, "_LONGEST", 0.002)
        patch.setattr(turn_stream, "_PAUSE", 0.01)
        yield


async def generated(store: LyingStore, seconds: float = 20.0) -> object:
    """Return the last event or the error of a generation over that store, within a time limit."""
    made = services(store=store)
    await open_turn(store, header())
    await made.models.first.pool.probe()
    try:
        async for event in events_of(TurnStream(made, TURN, time.monotonic() + seconds, header())):
            last = event
    except SpecdecError as error:
        return error
    finally:
        await made.passes.close()
    return last


@pytest.mark.parametrize("lie", ["fenced", "over"])
async def test_a_turn_that_is_lost_without_end_is_given_up(lie: str) -> None:
    store = LyingStore(acquire=[lie], commit=["as it is"], read=["as it is"])
    assert isinstance(await generated(store), SessionDiverged)
    assert store.calls == 2 * (MOST + 2)


async def test_a_turn_whose_rounds_and_length_never_agree_is_given_up() -> None:
    store = LyingStore(acquire=["as it is"], commit=["fenced"], read=["as it is"])
    assert isinstance(await generated(store), SessionDiverged)


SCRIPT = st.lists(st.sampled_from(list(LIES)), min_size=1, max_size=ANSWERS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(acquire=SCRIPT, commit=SCRIPT, read=SCRIPT)
@example(acquire=["as it is"], commit=["held", "held", "held", "held", "as it is", "held"], read=["as it is"])
async def test_whatever_the_store_says_a_generation_ends_and_never_as_internal(
    acquire: list[str], commit: list[str], read: list[str]
) -> None:
    store = LyingStore(acquire=acquire, commit=commit, read=read)
    end = await generated(store, seconds=0.3)
    assert isinstance(end, Finished | SpecdecError)
    assert getattr(end, "reason", "") != "INTERNAL"
    assert store.calls <= CALLS


async def test_progress_starts_the_count_again() -> None:
    counted = TurnRetries()
    for length in range(3 * MOST):
        await counted.wait(length, "fenced")
    for _ in range(MOST):
        await counted.wait(3 * MOST - 1, "fenced")
    with pytest.raises(SessionDiverged, match="fenced"):
        await counted.wait(3 * MOST - 1, "fenced")
