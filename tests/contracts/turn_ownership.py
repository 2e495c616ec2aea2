"""What every session store must let an owner do, and nobody else: a class of tests, as in `session_store.py`."""

import asyncio
import uuid

import pytest

from gateway.store.sessions import SessionStore
from gateway.store.values import RoundCommit, StoredRound
from gateway.tasks import cancel_and_wait
from specdec.errors import Fenced, SessionBusy, SessionDiverged, SessionNotFound, TurnOver
from tests.contracts.session_store import Backend, Fixtures, begin, finish_turn, log_of, open_turn


class OwnershipContract(Fixtures):
    """Leases, rounds and cancellations."""

    # acquire, renew, release

    async def test_an_owner_that_acquires_again_gets_a_newer_epoch(self, store: SessionStore, sid: str) -> None:
        first = await begin(store, sid)
        await store.commit(RoundCommit(sid, first, 3, [10, 11]))
        lease = await store.acquire(sid, "a")
        assert lease.epoch > first
        assert lease.n == 5

    async def test_a_running_lease_keeps_others_out_until_it_ends(self, backend: Backend, sid: str) -> None:
        mine = await begin(backend.store, sid)
        with pytest.raises(SessionBusy, match="another gateway"):
            await backend.store.acquire(sid, "b")
        await backend.expire_lease(sid)
        assert (await backend.store.acquire(sid, "b")).epoch > mine

    async def test_of_two_that_acquire_at_once_one_is_refused(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        results = await asyncio.gather(store.acquire(sid, "a"), store.acquire(sid, "b"), return_exceptions=True)
        assert sum(isinstance(result, SessionBusy) for result in results) == 1

    async def test_an_unknown_session_cannot_be_acquired(self, store: SessionStore, sid: str) -> None:
        with pytest.raises(SessionNotFound):
            await store.acquire(sid, "a")

    async def test_renew_is_for_the_current_epoch_only(self, backend: Backend, sid: str) -> None:
        store = backend.store
        old = await begin(store, sid)
        assert await store.renew(sid, old) is False
        await backend.expire_lease(sid)
        await store.acquire(sid, "b")
        with pytest.raises(Fenced):
            await store.renew(sid, old)

    async def test_release_lets_the_next_owner_in_at_once(self, store: SessionStore, sid: str) -> None:
        mine = await begin(store, sid)
        assert await store.release(sid, mine)
        await store.acquire(sid, "b")
        assert not await store.release(sid, mine)
        with pytest.raises(SessionBusy):
            await store.acquire(sid, "c")

    # commit

    async def test_a_commit_appends(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        assert await store.commit(RoundCommit(sid, epoch, 3, [10, 11])) is False
        assert await log_of(store, sid) == [1, 2, 3, 10, 11]

    async def test_the_same_commit_twice_is_stored_once(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        for finish in ("", "stop"):
            commit = RoundCommit(sid, epoch, len(await log_of(store, sid)), [10, 11], finish=finish)
            assert await store.commit(commit) == await store.commit(commit)
        assert await log_of(store, sid) == [1, 2, 3, 10, 11, 10, 11]
        assert len((await store.read(sid, "t", 1)).rounds) == 2

    async def test_an_older_owner_is_fenced(self, backend: Backend, sid: str) -> None:
        store = backend.store
        old = await begin(store, sid)
        await backend.expire_lease(sid)
        await store.acquire(sid, "b")
        with pytest.raises(Fenced):
            await store.commit(RoundCommit(sid, old, 3, [10]))
        assert await log_of(store, sid) == [1, 2, 3]

    async def test_a_commit_past_the_end_of_the_log_is_a_gap(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        with pytest.raises(SessionDiverged, match="lost some"):
            await store.commit(RoundCommit(sid, epoch, 4, [10]))

    async def test_a_repeated_commit_with_other_tokens_is_a_mismatch(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await store.commit(RoundCommit(sid, epoch, 3, [10, 11]))
        for base, tokens in ((3, [10, 12]), (4, [11, 12])):
            with pytest.raises(SessionDiverged, match="differs"):
                await store.commit(RoundCommit(sid, epoch, base, tokens))

    async def test_nothing_follows_the_end_of_a_turn(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await store.commit(RoundCommit(sid, epoch, 3, [9], finish="stop"))
        with pytest.raises(TurnOver):
            await store.acquire(sid, "a")
        with pytest.raises(SessionDiverged):
            await store.commit(RoundCommit(sid, epoch, 4, [5]))

    async def test_an_end_without_tokens_may_be_repeated_and_not_changed(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await store.commit(RoundCommit(sid, epoch, 3, [10]))
        last = RoundCommit(sid, epoch, 4, [], finish="cancelled")
        assert await store.commit(last) == await store.commit(last)
        with pytest.raises(SessionDiverged):
            await store.commit(RoundCommit(sid, epoch, 4, [], finish="stop"))
        ended = await store.read(sid, "t", 1)
        assert [each.finish for each in ended.rounds] == ["", "cancelled"]

    async def test_an_unknown_session_cannot_be_committed_to(self, store: SessionStore, sid: str) -> None:
        with pytest.raises(SessionNotFound):
            await store.commit(RoundCommit(sid, 1, 0, [10]))

    # cancel

    async def test_the_owner_sees_a_cancel_with_its_next_commit_and_renewal(
        self, store: SessionStore, sid: str
    ) -> None:
        epoch = await begin(store, sid)
        assert await store.cancel(sid, "t", 1)
        assert await store.renew(sid, epoch)
        commit = RoundCommit(sid, epoch, 3, [10])
        assert await store.commit(commit)
        assert await store.commit(commit)

    async def test_who_waits_for_a_cancel_wakes_with_it_and_with_no_other(self, store: SessionStore, sid: str) -> None:
        other = uuid.uuid4().hex
        for name in (sid, other):
            await begin(store, name)
        waiting = {name: asyncio.create_task(store.wait_cancelled(name, 1)) for name in (sid, other)}
        for _ in range(2):
            assert await store.cancel(sid, "t", 1)
        async with asyncio.timeout(20):
            await waiting[sid]
            await store.wait_cancelled(sid, 1)
        assert not waiting[other].done()
        await cancel_and_wait(waiting[other])

    async def test_a_cancel_of_one_turn_does_not_reach_the_next(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await store.cancel(sid, "t", 1)
        await store.commit(RoundCommit(sid, epoch, 3, [], finish="stop"))
        epoch = await begin(store, sid, "r2", tokens=[4])
        waiting = asyncio.create_task(store.wait_cancelled(sid, 2))
        async with asyncio.timeout(20):
            await store.wait_cancelled(sid, 1)
        assert not waiting.done()
        assert await store.renew(sid, epoch) is False
        await store.cancel(sid, "t", 2)
        async with asyncio.timeout(20):
            await waiting

    async def test_a_turn_that_does_not_run_is_not_cancelled(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        assert not await store.cancel(sid, "t", 2)
        await finish_turn(store, sid)
        assert not await store.cancel(sid, "t", 1)

    async def test_a_turn_without_an_owner_is_cancelled_at_once_and_its_last_owner_fenced(
        self, store: SessionStore, sid: str
    ) -> None:
        epoch = await begin(store, sid)
        await store.release(sid, epoch)
        assert await store.cancel(sid, "t", 1)
        assert (await store.read(sid, "t", 1)).rounds == (StoredRound((), "stop", b""),)
        with pytest.raises(Fenced):
            await store.commit(RoundCommit(sid, epoch, 3, [9]))
        with pytest.raises(TurnOver):
            await store.acquire(sid, "b")
