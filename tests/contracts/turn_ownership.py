"""Contract of ownership in every session store: only the owner may act. A class of tests, as in `session_store.py`."""

import asyncio
import uuid

import pytest

from gateway.store.sessions import SessionStore
from gateway.store.values import RoundCommit, StoredRound
from specdec.errors import Fenced, SessionBusy, SessionDiverged, SessionNotFound, SpecdecError, TurnOver
from tests.contracts.session_store import Backend, Fixtures, begin, commit, finish_turn, log_of, open_turn, renew


class OwnershipContract(Fixtures):
    """Tests of leases, rounds and cancellations."""

    # acquire, renew, release

    async def test_an_owner_that_acquires_again_gets_a_newer_epoch(self, store: SessionStore, sid: str) -> None:
        first = await begin(store, sid)
        await commit(store, RoundCommit(sid, first, 3, [10, 11]))
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
        assert await renew(store, sid, old) is False
        await backend.expire_lease(sid)
        await store.acquire(sid, "b")
        with pytest.raises(Fenced):
            await renew(store, sid, old)

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
        assert await commit(store, RoundCommit(sid, epoch, 3, [10, 11])) is False
        assert await log_of(store, sid) == [1, 2, 3, 10, 11]

    async def test_the_same_commit_twice_is_stored_once(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        for finish in ("", "stop"):
            written = RoundCommit(sid, epoch, len(await log_of(store, sid)), [10, 11], finish=finish)
            assert await commit(store, written) == await commit(store, written)
        assert await log_of(store, sid) == [1, 2, 3, 10, 11, 10, 11]
        assert len((await store.read(sid, "t", 1)).rounds) == 2

    async def test_an_older_owner_is_fenced(self, backend: Backend, sid: str) -> None:
        store = backend.store
        old = await begin(store, sid)
        await backend.expire_lease(sid)
        await store.acquire(sid, "b")
        with pytest.raises(Fenced):
            await commit(store, RoundCommit(sid, old, 3, [10]))
        assert await log_of(store, sid) == [1, 2, 3]

    async def test_a_commit_past_the_end_of_the_log_is_a_gap(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        with pytest.raises(SessionDiverged, match="lost some"):
            await commit(store, RoundCommit(sid, epoch, 4, [10]))

    async def test_a_repeated_commit_with_other_tokens_is_a_mismatch(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await commit(store, RoundCommit(sid, epoch, 3, [10, 11]))
        for base, tokens in ((3, [10, 12]), (4, [11, 12])):
            with pytest.raises(SessionDiverged, match="differs"):
                await commit(store, RoundCommit(sid, epoch, base, tokens))

    async def test_nothing_follows_the_end_of_a_turn(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await commit(store, RoundCommit(sid, epoch, 3, [9], finish="stop"))
        with pytest.raises(TurnOver):
            await store.acquire(sid, "a")
        with pytest.raises(SessionDiverged):
            await commit(store, RoundCommit(sid, epoch, 4, [5]))

    async def test_an_end_without_tokens_may_be_repeated_and_not_changed(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await commit(store, RoundCommit(sid, epoch, 3, [10]))
        last = RoundCommit(sid, epoch, 4, [], finish="cancelled")
        assert await commit(store, last) == await commit(store, last)
        with pytest.raises(SessionDiverged):
            await commit(store, RoundCommit(sid, epoch, 4, [], finish="stop"))
        ended = await store.read(sid, "t", 1)
        assert [each.finish for each in ended.rounds] == ["", "cancelled"]

    async def test_an_unknown_session_cannot_be_committed_to(self, store: SessionStore, sid: str) -> None:
        with pytest.raises(SessionNotFound):
            await commit(store, RoundCommit(sid, 1, 0, [10]))

    # a pass

    async def test_the_rounds_of_a_pass_are_appended_each_to_its_session(self, store: SessionStore) -> None:
        sids = [uuid.uuid4().hex for _ in range(5)]
        epochs = [await begin(store, each) for each in sids]
        for base in (3, 4):
            rounds = [
                RoundCommit(sid, epoch, base, [10 * index + base])
                for index, (sid, epoch) in enumerate(zip(sids, epochs, strict=True))
            ]
            assert list(await store.commit(rounds)) == [False] * 5
        for index, sid in enumerate(sids):
            assert await log_of(store, sid) == [1, 2, 3, 10 * index + 3, 10 * index + 4]

    async def test_each_round_of_a_pass_is_refused_alone(self, backend: Backend) -> None:
        store = backend.store
        fenced, diverged, cancelled, sound = (uuid.uuid4().hex for _ in range(4))
        epochs = {each: await begin(store, each) for each in (fenced, diverged, cancelled, sound)}
        await backend.expire_lease(fenced)
        await store.acquire(fenced, "b")
        await store.cancel(cancelled, "t", 1)
        names = (fenced, uuid.uuid4().hex, cancelled, diverged, sound)
        bases = (3, 3, 3, 7, 3)
        rounds = [RoundCommit(sid, epochs.get(sid, 1), base, [9]) for sid, base in zip(names, bases, strict=True)]
        for _ in range(2):
            found = await store.commit(rounds)
            kinds = [type(each) if isinstance(each, SpecdecError) else each for each in found]
            assert kinds == [Fenced, SessionNotFound, True, SessionDiverged, False]
        assert [len(await log_of(store, sid)) for sid in epochs] == [3, 3, 4, 4]

    async def test_rounds_of_one_session_in_one_pass_are_appended_in_order(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        rounds = [RoundCommit(sid, epoch, 3, [10, 11]), RoundCommit(sid, epoch, 5, [12], finish="stop")]
        for _ in range(2):
            assert list(await store.commit(rounds)) == [False, False]
        assert await log_of(store, sid) == [1, 2, 3, 10, 11, 12]
        assert [each.finish for each in (await store.read(sid, "t", 1)).rounds] == ["", "stop"]

    async def test_more_rounds_than_one_script_takes_are_appended_in_order(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        tokens = list(range(600))
        rounds = [RoundCommit(sid, epoch, 3 + token, [token]) for token in tokens]
        assert list(await store.commit(rounds)) == [False] * len(rounds)
        assert await log_of(store, sid) == [1, 2, 3, *tokens]

    async def test_a_pass_without_rounds_has_no_outcomes(self, store: SessionStore) -> None:
        assert (list(await store.commit([])), list(await store.renew([]))) == ([], [])

    async def test_leases_are_renewed_together_and_each_is_refused_alone(self, backend: Backend) -> None:
        store = backend.store
        sound, fenced, cancelled = (uuid.uuid4().hex for _ in range(3))
        epochs = {each: await begin(store, each) for each in (sound, fenced, cancelled)}
        await backend.expire_lease(fenced)
        await store.acquire(fenced, "b")
        await store.cancel(cancelled, "t", 1)
        found = await store.renew([*epochs.items(), (uuid.uuid4().hex, 1)])
        kinds = [type(each) if isinstance(each, SpecdecError) else each for each in found]
        assert kinds == [False, Fenced, True, Fenced]

    # cancel

    async def test_an_owner_hears_of_the_cancellations_of_its_own_turns(self, store: SessionStore, sid: str) -> None:
        mine, another = (uuid.uuid4().hex for _ in range(2))
        sids = {owner: uuid.uuid4().hex for owner in (mine, another)}
        for owner, each in sids.items():
            await open_turn(store, each)
            await store.acquire(each, owner)
        heard = store.cancellations(mine)
        first = asyncio.ensure_future(anext(heard))
        await asyncio.sleep(0)
        for each in sids.values():
            assert await store.cancel(each, "t", 1)
        async with asyncio.timeout(20):
            assert await first == (sids[mine], 1)
            await open_turn(store, sid)
            await store.acquire(sid, mine)
            await store.cancel(sid, "t", 1)
            assert await anext(heard) == (sid, 1)

    async def test_the_owner_sees_a_cancel_with_its_next_commit_and_renewal(
        self, store: SessionStore, sid: str
    ) -> None:
        epoch = await begin(store, sid)
        assert await store.cancel(sid, "t", 1)
        assert await renew(store, sid, epoch)
        written = RoundCommit(sid, epoch, 3, [10])
        assert await commit(store, written)
        assert await commit(store, written)

    async def test_a_cancel_of_one_turn_does_not_reach_the_next(self, store: SessionStore, sid: str) -> None:
        epoch = await begin(store, sid)
        await store.cancel(sid, "t", 1)
        await commit(store, RoundCommit(sid, epoch, 3, [], finish="stop"))
        epoch = await begin(store, sid, "r2", tokens=[4])
        assert await renew(store, sid, epoch) is False
        assert await commit(store, RoundCommit(sid, epoch, 4, [5])) is False
        await store.cancel(sid, "t", 2)
        assert await renew(store, sid, epoch)

    async def test_a_turn_that_does_not_run_is_not_cancelled(self, store: SessionStore, sid: str) -> None:
        await open_turn(store, sid)
        assert not await store.cancel(sid, "t", 2)
        await finish_turn(store, sid)
        assert not await store.cancel(sid, "t", 1)

    async def test_a_turn_without_an_owner_is_cancelled_at_once_and_the_owner_fenced(
        self, store: SessionStore, sid: str
    ) -> None:
        epoch = await begin(store, sid)
        await store.release(sid, epoch)
        assert await store.cancel(sid, "t", 1)
        assert (await store.read(sid, "t", 1)).rounds == (StoredRound((), "stop", b""),)
        with pytest.raises(Fenced):
            await commit(store, RoundCommit(sid, epoch, 3, [9]))
        with pytest.raises(TurnOver):
            await store.acquire(sid, "b")
