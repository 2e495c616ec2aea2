"""Restores stored KV blocks into a verifier before the call that needs them, if that is measured to save time."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import structlog

from gateway.config import KvSettings
from gateway.kv.store import Block, BlockStore
from gateway.metrics import KvMetrics
from gateway.verifiers.client import VerifierClient
from specdec.errors import SessionStoreDown, SpecdecError
from specdec.wire.generation import GenerationCall
from specdec.wire.kv import KvSpan

_PATIENCE_PER_TOKEN = 0.1 / 1024
"""Extra seconds of lookup timeout per token of the call."""
_PAUSE = 5.0
"""Seconds without lookups after one that timed out or that the store did not answer."""
_BATCH = 8
"""Number of blocks fetched from the store concurrently."""
_FLAWS = ("short", "corrupt", "foreign")
"""Verifiers' miss reasons for a corrupt value, which is deleted and may be stored again."""
_NEWEST_WEIGHT = 0.3
"""Weight of the newest measurement in the mean, in (0, 1]."""
_WINDOW = 1.0
"""Seconds after which overlapping transfers are measured, even if the path is never idle."""
_STALE_AFTER = 60.0
"""Seconds after which measurements expire, so that a path that was too slow is tried again."""

_log = structlog.get_logger()


class Lookup(NamedTuple):
    """Result of a lookup."""

    known: int = 0
    """Number of leading blocks that the store has and that are not known to be corrupt."""
    miss: str = ""
    """Reason that the lookup ended before the last block; empty if it did not."""
    held: int = 0
    """Number of tokens in the verifier's own prefix cache before."""
    restored: int = 0
    """Number of tokens that the verifier took from the store."""


class KvReader:
    """Restores blocks into verifiers. Failures and timeouts count as misses and never raise."""

    def __init__(self, store: BlockStore, settings: KvSettings, metrics: KvMetrics) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._bandwidth = Bandwidth()
        self._rate = 0.0
        """Last known prefill rate of a verifier, in tokens per second; 0 while unknown."""
        self._paused_until = 0.0

    async def restore(
        self, verifier: VerifierClient, call: GenerationCall, blocks: Sequence[Block], prefill_rate: float
    ) -> int:
        """Restore the stored blocks of a call into its verifier, if that saves time.

        Args:
            verifier: verifier of the call.
            call: call that needs the blocks.
            blocks: whole blocks of the call's tokens.
            prefill_rate: prefill rate of the verifier in tokens per second; 0 while unknown.

        Returns:
            Number of leading `blocks` that the store has and that are not known to be corrupt.
        """
        if time.monotonic() < self._paused_until:
            return 0
        self._rate = prefill_rate or self._rate
        found = Lookup()
        try:
            async with asyncio.timeout(self._patience(len(call.tokens))):
                sizes = await self._store.sizes([block.key for block in blocks])
                known = next((index for index, size in enumerate(sizes) if not size), len(blocks))
                found = Lookup(known)
                if known:
                    await self._store.touch(call.cache_salt, [block.key for block in blocks[:known]], sizes[:known])
                    found = await self._move(verifier, call, blocks[:known], sizes[:known])
        except (TimeoutError, SpecdecError) as error:
            _log.info("kv_restore_failed", verifier=verifier.address, error=str(error))
            if isinstance(error, TimeoutError | SessionStoreDown):
                self._paused_until = time.monotonic() + _PAUSE
            found = found._replace(miss="late" if isinstance(error, TimeoutError) else "failed")
        if not found.miss and found.known < len(blocks):
            found = found._replace(miss="absent")
        if found.miss:
            self._metrics.misses.labels(found.miss).inc()
        place = {"session": call.session_id, "epoch": call.epoch, "verifier": verifier.address}
        _log.debug("kv_lookup", **place, blocks=len(blocks), **found._asdict())
        return found.known

    def _patience(self, tokens: int) -> float:
        computing = tokens / self._rate if self._rate else 0.0
        return max(self._settings.patience + tokens * _PATIENCE_PER_TOKEN, computing / 2)

    async def _move(
        self, verifier: VerifierClient, call: GenerationCall, blocks: Sequence[Block], sizes: Sequence[int]
    ) -> Lookup:
        """Transfer the blocks that the verifier lacks from the store."""
        held = await verifier.find_kv(call.tokens[: blocks[-1].stop], call.cache_salt)
        first = next((index for index, block in enumerate(blocks) if block.stop > held), len(blocks))
        wanted = blocks[first:]
        if not wanted:
            return Lookup(len(blocks), held=held)
        if not worth_restoring(wanted[-1].stop - held, sum(sizes[first:]), self._bandwidth.value, self._rate):
            return Lookup(len(blocks), "slower", held)
        started = time.perf_counter()
        with self._bandwidth.transfer() as moved:
            values = await self._fetch(wanted)
            if not values:
                return Lookup(first, "absent", held)
            tokens = call.tokens[: wanted[len(values) - 1].stop]
            span = KvSpan(tokens, call.cache_salt, wanted[0].start, wanted[0].stop - wanted[0].start)
            reached, miss = await verifier.restore_kv(span, values)
            moved(sum(map(len, values)))
        restored = max(reached - held, 0)
        self._count(values, restored, span.block_tokens, time.perf_counter() - started)
        if miss not in _FLAWS:
            return Lookup(first + len(values), miss, held, restored)
        spoiled = max(reached - span.start, 0) // span.block_tokens
        await self._store.drop(wanted[spoiled].key)
        return Lookup(first + spoiled, miss, held, restored)

    async def _fetch(self, blocks: Sequence[Block]) -> list[bytes]:
        """Fetch the values of blocks, up to the first that is no longer stored."""
        values: list[bytes] = []
        for begin in range(0, len(blocks), _BATCH):
            batch = blocks[begin : begin + _BATCH]
            for value in await asyncio.gather(*(self._store.get(block.key) for block in batch)):
                if not value:
                    return values
                values.append(value)
        return values

    def _count(self, values: Sequence[bytes], tokens: int, block_tokens: int, seconds: float) -> None:
        self._metrics.bytes.labels("out").inc(sum(map(len, values)))
        self._metrics.hits.inc(tokens // block_tokens)
        self._metrics.tokens.inc(tokens)
        if self._rate:
            self._metrics.saved.inc(max(tokens / self._rate - seconds, 0.0))


def worth_restoring(tokens: int, size: int, bandwidth: float | None, prefill_rate: float) -> bool:
    """Whether fetching blocks is faster than computing them; true while a rate is unknown.

    Args:
        tokens: number of tokens to restore.
        size: size of their blocks, in bytes.
        bandwidth: bytes per second from the store to a verifier; None while unknown.
        prefill_rate: prefill rate of the verifier in tokens per second; 0 while unknown.
    """
    if not tokens:
        return False
    if bandwidth is None or not prefill_rate:
        return True
    return size / bandwidth < tokens / prefill_rate


class Bandwidth:
    """Exponentially weighted mean of the bandwidth in bytes per second, which expires when it is old.

    Overlapping transfers are measured together: a prefill rate is also that of all sessions of a verifier together.
    Otherwise the sessions of a lost verifier, which move at once, would make the path seem slower than it is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mean: float | None = None
        self._seen = clock()
        self._running = 0
        """Number of transfers in progress."""
        self._began = 0.0
        """Time since which `_size` bytes were moved."""
        self._size = 0

    @property
    def value(self) -> float | None:
        """Bytes per second; None before the first measurement and after the last one expired."""
        return self._mean if self._clock() - self._seen < _STALE_AFTER else None

    @contextmanager
    def transfer(self) -> Iterator[Callable[[int], None]]:
        """Measure a transfer; yield a function to call with its size in bytes once it succeeded."""
        if not self._running:
            self._began, self._size = self._clock(), 0
        self._running += 1
        try:
            yield self._add
        finally:
            self._running -= 1
            now = self._clock()
            if self._size and (not self._running or now - self._began >= _WINDOW):
                self.observe(self._size, now - self._began)
                self._began, self._size = now, 0

    def _add(self, size: int) -> None:
        self._size += size

    def observe(self, size: int, seconds: float) -> None:
        """Add the measurement of `size` bytes that took `seconds`, which is more than 0."""
        rate, before = size / seconds, self.value
        self._mean = rate if before is None else before + _NEWEST_WEIGHT * (rate - before)
        self._seen = self._clock()
