"""Every reply of every session operation, from a real server."""

import asyncio
import uuid
from typing import Any

import pytest

from gateway.store import lua
from gateway.store.redis_client import connect
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.sessions import Commit, Opened, SessionState, SessionStore
from gateway.tasks import end
from specdec.errors import (
    ContextLengthExceeded,
    Fenced,
    FieldInvalid,
    FieldRequired,
    SessionBusy,
    SessionDiverged,
    SessionNotFound,
    SessionStoreDown,
    TurnOver,
)
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration


@pytest.fixture
def sid() -> str:
    return uuid.uuid4().hex


async def _open(store: SessionStore, sid: str, request: str = "r1", **changes: Any) -> Opened:
    arguments = {"tokens": [1, 2, 3], "params_blob": b"{}", "model_fingerprint": "fp", "tenant": "t"} | changes
    return await store.open(sid, request, **arguments)


def _round(sid: str, epoch: int, base: int, *tokens: int, finish: str = "") -> Commit:
    return Commit(sid, epoch, base, tokens, finish=finish)


async def _finish_turn(store: SessionStore, sid: str) -> int:
    lease = await store.acquire(sid, "a")
    return (await store.commit(_round(sid, lease.epoch, lease.n, 9, finish="stop"))).n


# open


async def test_open_starts_the_first_turn_after_the_prompt(store: RedisSessionStore, sid: str) -> None:
    assert await _open(store, sid) == Opened(turn=1, base=3)
    assert await store.tokens(sid) == [1, 2, 3]


async def test_a_repeated_request_attaches_to_its_turn(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    assert await _open(store, sid) == Opened(1, 3, SessionState.GENERATING, repeated=True)
    assert await store.tokens(sid) == [1, 2, 3]


async def test_a_request_of_an_earlier_turn_is_told_that_turn_and_that_it_is_done(
    store: RedisSessionStore, sid: str
) -> None:
    await _open(store, sid)
    await _finish_turn(store, sid)
    assert await _open(store, sid, "r2", tokens=[5, 6]) == Opened(turn=2, base=6)
    assert await _open(store, sid, "r1") == Opened(1, 3, SessionState.DONE, repeated=True)


async def test_a_second_turn_appends_to_the_log(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    await _finish_turn(store, sid)
    await _open(store, sid, "r2", tokens=[5, 6])
    assert await store.tokens(sid) == [1, 2, 3, 9, 5, 6]


async def test_a_turn_cannot_open_while_another_is_generated(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    with pytest.raises(SessionBusy, match="turn 1"):
        await _open(store, sid, "r2")


async def test_a_turn_that_was_broken_off_ends_where_it_stands_when_the_next_opens(
    store: RedisSessionStore, sid: str
) -> None:
    await _open(store, sid)
    owner = await store.acquire(sid, "a")
    await store.commit(_round(sid, owner.epoch, 3, 9))
    await store.release(sid, owner.epoch)
    assert await _open(store, sid, "r2", tokens=[5, 6], expect_turn=1) == Opened(turn=2, base=6)
    with pytest.raises(Fenced):
        await store.commit(_round(sid, owner.epoch, 6, 7))
    with pytest.raises(TurnOver):
        await store.acquire(sid, "a", turn=1)
    ended = await store.read(sid, "t", 1)
    assert [(each.tokens, each.finish) for each in ended.rounds] == [((9,), ""), ((), "stop")]
    assert ended.state is SessionState.DONE


async def test_a_turn_whose_owner_fell_silent_ends_when_the_next_opens(server: Server, sid: str) -> None:
    brief = RedisSessionStore.at(server.url, StorePolicy(lease=0.001))
    await _open(brief, sid)
    await brief.acquire(sid, "a")
    await asyncio.sleep(0.01)
    assert (await _open(brief, sid, "r2")).turn == 2
    await brief.close()


async def test_a_writer_that_expects_an_older_turn_is_refused(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid, expect_turn=0)
    await _finish_turn(store, sid)
    with pytest.raises(SessionBusy, match="another writer was first"):
        await _open(store, sid, "r2", expect_turn=0)


async def test_another_tenants_session_is_not_there_even_for_a_known_request(
    store: RedisSessionStore, sid: str
) -> None:
    await _open(store, sid)
    with pytest.raises(SessionNotFound):
        await _open(store, sid, "r1", tenant="other")


async def test_a_session_keeps_its_model(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    with pytest.raises(FieldInvalid, match="another model"):
        await _open(store, sid, "r2", model_fingerprint="fp2")


async def test_a_log_over_the_limit_is_refused_and_nothing_is_written(store: RedisSessionStore, sid: str) -> None:
    with pytest.raises(ContextLengthExceeded):
        await _open(store, sid, tokens=[1] * 1001)
    with pytest.raises(SessionNotFound):
        await store.tokens(sid)


async def test_a_turn_needs_tokens(store: RedisSessionStore, sid: str) -> None:
    with pytest.raises(FieldRequired):
        await _open(store, sid, tokens=[])


# acquire, renew, release


async def test_an_owner_that_takes_it_again_has_a_newer_epoch_and_the_length_of_the_log(
    store: RedisSessionStore, sid: str
) -> None:
    await _open(store, sid)
    first = await store.acquire(sid, "a")
    await store.commit(_round(sid, first.epoch, 3, 10, 11))
    lease = await store.acquire(sid, "a")
    assert lease.epoch > first.epoch
    assert lease.n == 5


async def test_a_running_lease_keeps_others_out_until_it_runs_out(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await _open(store, sid)
    mine = await store.acquire(sid, "a")
    with pytest.raises(SessionBusy, match="another gateway"):
        await store.acquire(sid, "b")
    await server.expire_lease(sid)
    assert (await store.acquire(sid, "b")).epoch > mine.epoch


async def test_an_expired_lease_is_free_to_take(store: RedisSessionStore, server: Server, sid: str) -> None:
    brief = RedisSessionStore.at(server.url, StorePolicy(lease=0.001))
    await _open(brief, sid)
    mine = await brief.acquire(sid, "a")
    await asyncio.sleep(0.01)
    assert (await store.acquire(sid, "b")).epoch > mine.epoch
    await brief.close()


async def test_no_session_cannot_be_acquired(store: RedisSessionStore, sid: str) -> None:
    with pytest.raises(SessionNotFound):
        await store.acquire(sid, "a")


async def test_renew_is_for_the_current_epoch_only(store: RedisSessionStore, server: Server, sid: str) -> None:
    await _open(store, sid)
    old = await store.acquire(sid, "a")
    assert await store.renew(sid, old.epoch) is False
    await server.take_over(store, sid, "b")
    with pytest.raises(Fenced):
        await store.renew(sid, old.epoch)


async def test_release_lets_the_next_owner_in_at_once(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    mine = await store.acquire(sid, "a")
    assert await store.release(sid, mine.epoch)
    await store.acquire(sid, "b")
    assert not await store.release(sid, mine.epoch)


# commit


async def test_a_commit_appends_and_counts(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    committed = await store.commit(_round(sid, lease.epoch, 3, 10, 11))
    assert (committed.n, committed.cancelled) == (5, False)
    assert await store.tokens(sid) == [1, 2, 3, 10, 11]


async def test_the_same_commit_twice_is_the_same_as_once(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    round_ = _round(sid, lease.epoch, 3, 10, 11)
    assert await store.commit(round_) == await store.commit(round_)
    assert await store.tokens(sid) == [1, 2, 3, 10, 11]


async def test_a_repeated_commit_writes_so_that_wait_means_something(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    round_ = _round(sid, lease.epoch, 3, 10)
    await store.commit(round_)
    async with connect(server.url) as client:
        meta = lua.keys(sid)[0]
        await client.hset(meta, "lu", "0")
        await store.commit(round_)
        assert int(await client.hget(meta, "lu") or 0) > 0


async def test_an_older_owner_is_fenced(store: RedisSessionStore, server: Server, sid: str) -> None:
    await _open(store, sid)
    old = await store.acquire(sid, "a")
    await server.take_over(store, sid, "b")
    with pytest.raises(Fenced):
        await store.commit(_round(sid, old.epoch, 3, 10))
    assert await store.tokens(sid) == [1, 2, 3]


async def test_a_commit_past_the_end_of_the_log_is_a_gap(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    with pytest.raises(SessionDiverged, match="lost some"):
        await store.commit(_round(sid, lease.epoch, 4, 10))


async def test_a_retry_with_other_tokens_is_a_mismatch(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    await store.commit(_round(sid, lease.epoch, 3, 10, 11))
    with pytest.raises(SessionDiverged, match="differs"):
        await store.commit(_round(sid, lease.epoch, 3, 10, 12))
    with pytest.raises(SessionDiverged, match="differs"):
        await store.commit(_round(sid, lease.epoch, 4, 11, 12))


async def test_nothing_follows_the_end_of_a_turn(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    n = (await store.commit(_round(sid, lease.epoch, 3, 9, finish="stop"))).n
    with pytest.raises(TurnOver):
        await store.acquire(sid, "a")
    with pytest.raises(SessionDiverged):
        await store.commit(_round(sid, lease.epoch, n, 5))


async def test_an_end_without_tokens_is_an_event_of_its_own_and_repeats(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    await store.commit(_round(sid, lease.epoch, 3, 10))
    end = _round(sid, lease.epoch, 4, finish="cancelled")
    assert await store.commit(end) == await store.commit(end)
    with pytest.raises(SessionDiverged):
        await store.commit(_round(sid, lease.epoch, 4, finish="stop"))
    async with connect(server.url) as client:
        events = await client.xrange(lua.keys(sid)[2])
    assert [(name, fields[b"f"]) for name, fields in events[1:]] == [
        (b"1-8", b""),
        (b"1-9", b"cancelled"),
    ]


async def test_a_log_that_lost_tokens_is_not_written_to(store: RedisSessionStore, server: Server, sid: str) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    async with connect(server.url) as client:
        await client.set(lua.keys(sid)[1], b"\x01\x00\x00\x00")
    with pytest.raises(SessionDiverged, match="should"):
        await store.commit(_round(sid, lease.epoch, 3, 10))


async def test_no_session_cannot_be_committed_to(store: RedisSessionStore, sid: str) -> None:
    with pytest.raises(SessionNotFound):
        await store.commit(_round(sid, 1, 0, 10))


# cancel


async def test_the_owner_sees_a_cancel_with_its_next_commit_and_renewal(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    assert await store.cancel(sid, "t", 1)
    assert await store.renew(sid, lease.epoch)
    round_ = _round(sid, lease.epoch, 3, 10)
    assert (await store.commit(round_)).cancelled
    assert (await store.commit(round_)).cancelled


async def test_whoever_waits_for_a_cancel_hears_of_it_and_of_no_other(store: RedisSessionStore, sid: str) -> None:
    other = uuid.uuid4().hex
    for name in (sid, other):
        await _open(store, name)
        await store.acquire(name, "a")
    waiting = {name: asyncio.create_task(store.cancelled(name, 1)) for name in (sid, other)}
    for _ in range(2):
        assert await store.cancel(sid, "t", 1)
    async with asyncio.timeout(20):
        await waiting[sid]
        await store.cancelled(sid, 1)
    assert not waiting[other].done()
    await end(waiting[other])


async def test_a_cancel_of_one_turn_is_not_heard_in_the_next(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    await store.cancel(sid, "t", 1)
    await store.commit(_round(sid, lease.epoch, 3, finish="stop"))
    await store.open(sid, "r2", [4], b"{}", "fp", "t")
    await store.acquire(sid, "a")
    waiting = asyncio.create_task(store.cancelled(sid, 2))
    async with asyncio.timeout(20):
        await store.cancelled(sid, 1)
    assert not waiting.done()
    await store.cancel(sid, "t", 2)
    async with asyncio.timeout(20):
        await waiting


async def test_a_turn_that_does_not_run_is_not_cancelled(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    assert not await store.cancel(sid, "t", 2)
    await _finish_turn(store, sid)
    assert not await store.cancel(sid, "t", 1)


async def test_only_the_tenant_may_cancel(store: RedisSessionStore, sid: str) -> None:
    await _open(store, sid)
    with pytest.raises(SessionNotFound):
        await store.cancel(sid, "other", 1)


async def test_the_next_turn_begins_uncancelled_and_drops_events_of_turns_before_the_last(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    for turn in (1, 2, 3):
        await _open(store, sid, f"r{turn}")
        await store.acquire(sid, "a")
        await store.cancel(sid, "t", turn)
        await _finish_turn(store, sid)
    await _open(store, sid, "r4")
    assert await store.renew(sid, (await store.acquire(sid, "a")).epoch) is False
    async with connect(server.url) as client:
        assert [name for name, _ in await client.xrange(lua.keys(sid)[2])] == [b"3-22", b"3-24", b"4-30"]


# the server


async def test_scripts_come_back_after_the_server_forgot_them(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await _open(store, sid)
    async with connect(server.url) as client:
        await client.script_flush()
    assert (await store.acquire(sid, "a")).n == 3


async def test_the_server_never_evicts_and_keeps_a_log(store: RedisSessionStore) -> None:
    await store.ping()
    facts = await store.server_facts()
    assert (facts.maxmemory_policy, facts.append_only) == ("noeviction", True)
    assert facts.version


async def test_a_full_server_refuses_a_commit_and_tears_nothing(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await _open(store, sid)
    lease = await store.acquire(sid, "a")
    async with connect(server.url) as client:
        await client.config_set("maxmemory", "1")
        try:
            with pytest.raises(SessionStoreDown):
                await store.commit(_round(sid, lease.epoch, 3, 10))
        finally:
            await client.config_set("maxmemory", "0")
    assert (await store.commit(_round(sid, lease.epoch, 3, 10))).n == 4
