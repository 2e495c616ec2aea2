"""Waits for new entries of many Redis streams over one connection, with one blocking XREAD for all of them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis

from gateway.tasks import cancel_and_wait

BLOCK = 0.2
"""Seconds for which one XREAD blocks; a stream that is added meanwhile is part of the next one."""
_PAUSE = 0.2
"""Seconds between two tries while the server does not answer."""


class StreamWaiter:
    """Reads only while there is somebody to wake."""

    def __init__(self, client: Redis) -> None:
        """Args: client: one of its own, because its connection is busy while a read blocks."""
        self._client = client
        self._waiting: dict[str, dict[asyncio.Future[None], str]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def wait(self, key: str, after: str, timeout: float) -> None:
        """Return when the stream at `key` has an entry behind the id `after`, or after `timeout` seconds."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, {})[future] = after
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await future
        finally:
            waiting = self._waiting[key]
            del waiting[future]
            if not waiting:
                del self._waiting[key]

    async def cancellations(self, key: str) -> AsyncGenerator[tuple[str, int]]:
        """Session id and turn of each entry of an owner's stream of cancellations, without end."""
        last = b"0-0"
        while True:
            try:
                entries = _entries(await self._client.xread({key: last}, block=round(BLOCK * 1000)))
                found = [(fields[b"s"].decode(), int(fields[b"n"])) for _, fields in entries]
            except Exception:  # noqa: BLE001 - the server is away, or its answer cannot be read
                await asyncio.sleep(_PAUSE)
                continue
            if entries:
                last = entries[-1][0]
            for each in found:
                yield each

    async def close(self) -> None:
        """Stop reading and close the connection."""
        if self._reader is not None:
            await cancel_and_wait(self._reader)
        await self._client.aclose()

    async def _read(self) -> None:
        while self._waiting:
            oldest: Any = {key: min(afters.values(), key=_order) for key, afters in self._waiting.items()}
            try:
                self._take(await self._client.xread(oldest, count=1, block=round(BLOCK * 1000)))
            except Exception:  # noqa: BLE001 - the server is away, or its answer cannot be read
                await asyncio.sleep(_PAUSE)

    def _take(self, found: Any) -> None:
        """Wake those who wait for what was found."""
        for key, entries in found.items() if isinstance(found, dict) else found or ():
            first = entries[0][0]  # RESP 3 puts the list of entries into another list
            self._wake(key.decode(), (first if isinstance(first, bytes) else first[0]).decode())

    def _wake(self, key: str, entry: str) -> None:
        for future, after in self._waiting.get(key, {}).items():
            if not future.done() and _order(after) < _order(entry):
                future.set_result(None)


def _entries(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of the only stream in an answer to XREAD."""
    for _, entries in found.items() if isinstance(found, dict) else found or ():
        first = entries[0]
        return list(first if isinstance(first, list) else entries)  # RESP 3 puts the list into another list
    return []


def _order(entry_id: str) -> tuple[int, int]:
    turn, _, position = entry_id.partition("-")
    return int(turn), int(position)
