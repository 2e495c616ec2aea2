"""Contract of every session store: a class of tests that runs over each store that provides a `backend`."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.store.sessions import SessionStore
from gateway.store.values import Opened, RoundCommit, SessionState, StoredRound
from specdec.errors import (
    ContextLengthExceeded,
    Fenced,
    FieldInvalid,
    FieldRequired,
    IdempotencyKeyReused,
    SessionBusy,
    SessionExpired,
    SessionNotFound,
    SpecdecError,
    TurnOver,
)

MAX_TOKENS = 1000
"""Length of the longest log that a store under test may accept."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A store under test, with leases of some seconds, and functions that simulate the passing of time."""

    store: SessionStore
    expire_lease: Callable[[str], Awaitable[None]]
    """Ends the lease of a session's owner now."""
    lose_tokens: Callable[[str], Awaitable[None]]
    """Makes the store forget the log of a session, as after long disuse."""


async def open_turn(store: SessionStore, sid: str, request: str = "r1", **changes: Any) -> Opened:
    """Open a turn of three tokens, unless `changes` override it."""
    arguments = {"tokens": [1, 2, 3], "params_blob": b"{}", "model_fingerprint": "fp", "tenant": "t"} | changes
    return await store.open(sid, request, **arguments)


async def begin(store: SessionStore, sid: str, request: str = "r1", **changes: Any) -> int:
    """Begin a turn and own it. Return the owner's epoch."""
    await open_turn(store, sid, request, **changes)
    return (await store.acquire(sid, "a")).epoch


async def commit(store: SessionStore, one: RoundCommit) -> bool:
    """Commit a single round. Raises its error."""
    (outcome,) = await store.commit([one])
    if isinstance(outcome, SpecdecError):
        raise outcome
    return outcome


async def renew(store: SessionStore, sid: str, epoch: int) -> bool:
    """Renew a single lease. Raises its error."""
    (outcome,) = await store.renew([(sid, epoch)])
    if isinstance(outcome, SpecdecError):
        raise outcome
    return outcome


async def finish_turn(store: SessionStore, sid: str) -> None:
    """Own the running turn and end it with one more token."""
    lease = await store.acquire(sid, "a")
    await commit(store, RoundCommit(sid, lease.epoch, lease.n, [9], finish="stop"))


async def log_of(store: SessionStore, sid: str, tenant: str = "t") -> list[int]:
    """Return all tokens of a session: its last turn's prompt, which includes earlier turns, and the turn's rounds."""
    view = await store.get(sid, tenant)
    turn = await store.read(sid, tenant, view.turn)
    tokens = [*turn.prompt, *(token for stored in turn.rounds for token in stored.tokens)]
    assert view.n == len(tokens)
    return tokens


class Fixtures:
    """Base class whose subclasses provide the fixture `backend`."""

    @pytest.fixture
    def store(self, backend: Backend) -> SessionStore:
        return backend.store

    @pytest.fixture
    def sid(self) -> str:
        return uuid.uuid4().hex


class SessionContract(Fixtures):
    """Tests of sessions, their turns, and their readers."""

    # create, get, list_ids, delete

    async def test_a_session_that_was_created_has_no_turns_until_one_is_opened(
        self, store: SessionStore, sid: str
    ) -> None:
        with pytest.raises(SessionNotFound):
            await open_turn(store, sid, create=False)
        await store.create(sid, "t", "fp")
        view = await store.get(sid, "t")
        assert (view.turn, view.n, view.state, view.model_fingerprint) == (0, 0, SessionState.DONE, "fp")
        assert (await open_turn(store, sid, expect_turn=0, create=False)).turn == 1

    async def test_creating_a_session_again_leaves_it_as_it_is(self, store: SessionStore, sid: str) -> None:
        await store.create(sid, "t", "fp")
        await open_turn(store, sid, create=False)
        await store.create(sid, "t", "fp")
        assert (await store.get(sid, "t")).turn == 1

    async def test_the_id_of_another_tenants_session_cannot_be_created(self, store: SessionStore, sid: str) -> None:
        await store.create(sid, "t", "fp")
        with pytest.raises(SessionNotFound):
            await store.create(sid, "other", "fp")

    async def test_get_knows_which_turn_a_request_opened(self, store: SessionStore, sid: str) -> None:
        await begin(store, sid)
        view = await store.get(sid, "t", "r1")
        assert (view.turn, view.state, view.n, view.request_turn) == (1, SessionState.GENERATING, 3, 1)
        assert (await store.get(sid, "t", "r2")).request_turn is None

    async def test_the_sessions_a_tenant_created_are_listed_newest_first(self, store: SessionStore, sid: str) -> None:
        names = [f"{sid}-{index}" for index in range(3)]
        for name in names:
            await store.create(name, sid, "fp")
        await open_turn(store, f"{sid}-opened", tenant=sid)
        assert await store.list_ids(sid, 2) == [names[2], names[1]]
        assert await store.list_ids(sid, 2, after=names[1]) == [names[0]]
        assert await store.list_ids(sid, 2, after="unknown") == []

    async def test_a_session_that_is_not_listed_is_there_all_the_same(self, store: SessionStore, sid: str) -> None:
        await store.create(sid, sid, "fp", listed=False)
        assert await store.list_ids(sid, 10) == []
        assert (await store.get(sid, sid)).turn == 0

    async def test_the_secret_stays_the_same(self, store: SessionStore) -> None:
        assert await store.secret() == await store.secret() != b""

    async def test_a_deleted_session_is_gone_and_its_owner_can_write_no_more(
        self, store: SessionStore, sid: str
    ) -> None:
        await store.create(sid, sid, "fp")
        epoch = await begin(store, sid, tenant=sid)
        assert await store.list_ids(sid, 10) == [sid]
        await store.delete(sid, sid)
        assert await store.list_ids(sid, 10) == []
        for refused in (store.get(sid, sid), commit(store, RoundCommit(sid, epoch, 3, [9]))):
            with pytest.raises(SessionNotFound):
                await refused
        with pytest.raises(Fenced):
            await renew(store, sid, epoch)
        assert not await store.release(sid, epoch)

    async def test_another_tenant_gets_the_answers_of_a_session_that_never_was(
        self, store: SessionStore, sid: str
    ) -> None:
        await begin(store, sid)
        for name in (sid, "0" * 32):
            for refused in (
                store.get(name, "other"),
                store.read(name, "other", 1),
                store.cancel(name, "other", 1),
                store.delete(name, "other"),
                open_turn(store, name, tenant="other", create=False),
            ):
                with pytest.raises(SessionNotFound):
                    await refused
        assert (await store.get(sid, "t")).n == 3

    async def test_a_session_without_its_tokens_is_expired_to_its_own_tenant_alone(
        self, backend: Backend, sid: str
    ) -> None:
        store = backend.store
        await store.release(sid, await begin(store, sid))
        await backend.lose_tokens(sid)
        for refused in (
            store.get(sid, "t"),
            store.read(sid, "t", 1),
            store.acquire(sid, "b"),
            open_turn(store, sid, "r2"),
        ):
            with pytest.raises(SessionExpired):
                await refused
        with pytest.raises(SessionNotFound):
            await store.get(sid, "other")

    # open

    async def test_open_begins_the_first_turn_after_the_prompt(self, store: SessionStore, sid: str) -> None:
        assert await open_turn(store, sid) == Opened(turn=1)
        assert await log_of(store, sid) == [1, 2, 3]

    async def test_a_repeated_request_gets_its_turn(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        assert await open_turn(store, sid) == Opened(1, repeated=True)
        assert await log_of(store, sid) == [1, 2, 3]

    async def test_a_repeated_request_of_an_earlier_turn_gets_that_turn(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        await finish_turn(store, sid)
        assert await open_turn(store, sid, "r2", tokens=[5, 6]) == Opened(turn=2)
        assert await open_turn(store, sid, "r1") == Opened(1, repeated=True)

    async def test_a_request_id_with_another_digest_is_refused(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid, digest="one")
        with pytest.raises(IdempotencyKeyReused):
            await open_turn(store, sid, digest="two")

    async def test_a_second_turn_appends_to_the_log(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        await finish_turn(store, sid)
        await open_turn(store, sid, "r2", tokens=[5, 6])
        assert await log_of(store, sid) == [1, 2, 3, 9, 5, 6]

    async def test_a_turn_may_drop_the_end_of_what_it_continues(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await commit(store, RoundCommit(sid, epoch, 3, [4, 5]))
        await commit(store, RoundCommit(sid, epoch, 5, [6], finish="stop"))
        before = await store.read(sid, "t", 1)
        assert await open_turn(store, sid, "r2", tokens=[8, 9], base=4) == Opened(turn=2)
        assert await log_of(store, sid) == [1, 2, 3, 4, 8, 9]
        assert (await store.read(sid, "t", 1)).rounds == before.rounds
        lease = await store.acquire(sid, "a")
        assert lease.n == 6
        await commit(store, RoundCommit(sid, lease.epoch, 6, [7], finish="stop"))
        assert await open_turn(store, sid, "r3", tokens=[1], base=70) == Opened(turn=3)
        assert await log_of(store, sid) == [1, 2, 3, 4, 8, 9, 7, 1]

    async def test_what_a_turn_drops_makes_room(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid, tokens=[1] * (MAX_TOKENS - 2))
        await commit(store, RoundCommit(sid, epoch, MAX_TOKENS - 2, [2, 2], finish="stop"))
        with pytest.raises(ContextLengthExceeded):
            await open_turn(store, sid, "r2", tokens=[3, 3])
        assert (await open_turn(store, sid, "r2", tokens=[3, 3], base=MAX_TOKENS - 2)).turn == 2

    async def test_a_turn_cannot_open_while_another_is_generated(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        with pytest.raises(SessionBusy, match="turn 1"):
            await open_turn(store, sid, "r2")
        await store.acquire(sid, "a")
        with pytest.raises(SessionBusy, match="turn 1"):
            await open_turn(store, sid, "r2")

    async def test_a_released_turn_ends_as_it_is_when_the_next_opens(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await commit(store, RoundCommit(sid, epoch, 3, [9]))
        await store.release(sid, epoch)
        assert await open_turn(store, sid, "r2", tokens=[5, 6], expect_turn=1) == Opened(turn=2)
        with pytest.raises(Fenced):
            await commit(store, RoundCommit(sid, epoch, 6, [7]))
        with pytest.raises(TurnOver):
            await store.acquire(sid, "a", turn=1)
        ended = await store.read(sid, "t", 1)
        assert [(each.tokens, each.finish) for each in ended.rounds] == [((9,), ""), ((), "stop")]
        assert ended.state is SessionState.DONE

    async def test_a_turn_whose_lease_ended_ends_when_the_next_opens(self, backend: Backend, sid: str) -> None:
        await begin(backend.store, sid)
        await backend.expire_lease(sid)
        assert (await open_turn(backend.store, sid, "r2")).turn == 2

    async def test_a_writer_that_expects_an_older_turn_is_refused(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid, expect_turn=0)
        await finish_turn(store, sid)
        with pytest.raises(SessionBusy, match="another writer was first"):
            await open_turn(store, sid, "r2", expect_turn=0)

    async def test_another_tenant_cannot_repeat_a_request(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        with pytest.raises(SessionNotFound):
            await open_turn(store, sid, "r1", tenant="other")

    async def test_a_session_keeps_its_model(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        with pytest.raises(FieldInvalid, match="another model"):
            await open_turn(store, sid, "r2", model_fingerprint="fp2")

    async def test_a_log_over_the_limit_is_refused_and_nothing_is_written(self, store: SessionStore, sid: str) -> None:
        with pytest.raises(ContextLengthExceeded):
            await open_turn(store, sid, tokens=[1] * (MAX_TOKENS + 1))
        with pytest.raises(SessionNotFound):
            await store.get(sid, "t")

    async def test_a_turn_needs_tokens(self, store: SessionStore, sid: str) -> None:
        with pytest.raises(FieldRequired):
            await open_turn(store, sid, tokens=[])

    # read, wait

    async def test_a_turn_is_read_back_whole_or_from_a_length_on(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await commit(store, RoundCommit(sid, epoch, 3, [10, 11], note=b"one"))
        await commit(store, RoundCommit(sid, epoch, 5, [12], note=b"two"))
        whole = await store.read(sid, "t", 1)
        assert (whole.state, whole.prompt, whole.params) == (SessionState.GENERATING, (1, 2, 3), b"{}")
        assert whole.rounds == (StoredRound((10, 11), "", b"one"), StoredRound((12,), "", b"two"))
        assert whole.lease_left > 0
        assert (await store.read(sid, "t", 1, after=4)).rounds == whole.rounds
        assert (await store.read(sid, "t", 1, after=5)).rounds == whole.rounds[1:]
        assert (await store.read(sid, "t", 1, after=6)).rounds == ()
        await commit(store, RoundCommit(sid, epoch, 6, [], finish="stop"))
        last = await store.read(sid, "t", 1, after=6)
        assert (last.state, last.lease_left, last.rounds) == (SessionState.DONE, 0.0, (StoredRound((), "stop", b""),))
        assert (last.prompt, last.params) == ((), b"")

    async def test_a_turn_without_an_owner_has_no_lease_left(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        assert (await store.read(sid, "t", 1)).lease_left == 0.0
        await store.release(sid, (await store.acquire(sid, "a")).epoch)
        assert (await store.read(sid, "t", 1)).lease_left == 0.0

    async def test_the_turn_before_is_kept_and_those_before_it_are_not(self, store: SessionStore, sid: str) -> None:
        for turn in (1, 2, 3):
            epoch = await begin(store, sid, f"r{turn}")
            n = (await store.get(sid, "t")).n
            await commit(store, RoundCommit(sid, epoch, n, [turn], finish="stop"))
        assert (await store.read(sid, "t", 2)).prompt == (1, 2, 3, 1, 1, 2, 3)
        with pytest.raises(SessionExpired):
            await store.read(sid, "t", 1)
        for turn in (0, 4):
            with pytest.raises(SessionNotFound):
                await store.read(sid, "t", turn)

    async def test_a_waiting_reader_wakes_with_the_next_round(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        waiting = [asyncio.create_task(store.wait(sid, 1, 3, 60)) for _ in range(2)]
        await asyncio.sleep(0)
        await commit(store, RoundCommit(sid, epoch, 3, [10]))
        async with asyncio.timeout(20):
            await asyncio.gather(*waiting)
        await store.wait(sid, 1, 4, 0.01)
