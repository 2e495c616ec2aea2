"""New turns are refused when memory is short or writes fail."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from gateway.store.redis_memory import MemoryGuard
from specdec.errors import SessionStoreDown, SessionStoreFull, SessionStoreReadOnly
from tests.support.own_pipeline import OwnPipeline

NO_DISK = "MISCONF Errors writing to the AOF file: No space left on device"
SOUND = {"maxmemory": 100, "used_memory": 10, "aof_last_write_status": "ok", "rdb_last_bgsave_status": "ok"}
REPLICA = {"role": "slave"}


class Server(OwnPipeline):
    """Answers INFO and SET."""

    def __init__(self, refusal: RedisError | None = None, facts: Mapping[str, object] = SOUND) -> None:
        self.refusal = refusal
        self.facts = {**SOUND, **facts}
        self.asked: list[str] = []
        self.written: list[str] = []

    def info(self, section: str) -> None:
        self.asked.append(section)

    async def execute(self) -> list[dict[str, Any]]:
        return [self.facts] * 3

    async def set(self, name: str, value: bytes, px: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.written.append(name)
        assert (value, px) == (b"", 1000)

    async def check(self) -> None:
        await MemoryGuard(cast("Redis", self), "ours:").check()


async def test_a_sound_server_is_asked_and_not_written_to() -> None:
    server = Server(None, {"role": "master"})
    await server.check()
    assert server.asked == ["memory", "persistence", "replication"]
    assert server.written == []


async def test_a_server_that_is_nearly_full_takes_no_new_work() -> None:
    with pytest.raises(SessionStoreFull, match="85% full"):
        await Server(None, {"used_memory": 85}).check()


@pytest.mark.parametrize("failed", ["aof_last_write_status", "rdb_last_bgsave_status"])
async def test_after_a_failed_write_to_disk_a_write_shows_if_the_server_refuses(failed: str) -> None:
    with pytest.raises(SessionStoreFull, match="cannot write to its disk"):
        await Server(ResponseError(NO_DISK), {failed: "err"}).check()
    going_on = Server(None, {failed: "err"})
    await going_on.check()
    assert going_on.written == ["ours:writes"]


async def test_a_replica_is_told_from_a_server_that_is_away() -> None:
    with pytest.raises(SessionStoreReadOnly, match="is a replica"):
        await Server(ReadOnlyError("You can't write against a read only replica."), REPLICA).check()
    with pytest.raises(SessionStoreDown) as lost:
        await Server(RedisError("away"), REPLICA).check()
    assert not isinstance(lost.value, SessionStoreFull | SessionStoreReadOnly)


@pytest.mark.parametrize("spoiled", [{"maxmemory": "1o0"}, {"used_memory": None}])
async def test_facts_that_cannot_be_read_are_those_of_a_server_that_is_away(spoiled: Mapping[str, object]) -> None:
    with pytest.raises(SessionStoreDown, match="cannot be read"):
        await Server(None, spoiled).check()
