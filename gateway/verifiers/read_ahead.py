"""Reads the rounds of a generation while the last one is committed, and joins plain ones that have come meanwhile.

Where the gateway is short of processor time, a verifier is faster than the commits: rounds that are joined cost one
commit and one message to the client, however many they are.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import chain

from gateway.tasks import cancel_and_wait
from specdec.wire.generation import Round, Timing

MOST_WAITING = 64
"""Rounds that have come and that nobody has taken, at which reading pauses: a slow client slows its verifier down."""


async def read_ahead(rounds: AsyncGenerator[Round]) -> AsyncGenerator[Round]:
    """The rounds in their order, of which neighbours that can be joined are joined when they have come together.

    What `rounds` raises is raised behind all rounds that came before it. `rounds` is closed with this iterator.
    """
    waiting = _Waiting()
    reading = asyncio.create_task(waiting.fill(rounds))
    reading.add_done_callback(waiting.end)
    try:
        while await waiting.has_some():
            yield waiting.take()
        reading.result()
    finally:
        await cancel_and_wait(reading)


class _Waiting:
    """The rounds that have come and that nobody has taken."""

    def __init__(self) -> None:
        self._rounds: deque[Round] = deque()
        self._news = asyncio.Event()
        """Set when a round has come, and when no more will come."""
        self._room = asyncio.Event()
        """Set when rounds were taken."""
        self._over = False

    async def fill(self, rounds: AsyncGenerator[Round]) -> None:
        """Read `rounds` to their end, and close them."""
        async with aclosing(rounds):
            async for verified in rounds:
                self._rounds.append(verified)
                self._news.set()
                while len(self._rounds) >= MOST_WAITING:
                    self._room.clear()
                    await self._room.wait()

    def end(self, reading: asyncio.Task[None]) -> None:
        """Note that `reading` is done, so that no more rounds will come."""
        self._over = True
        self._news.set()
        if not reading.cancelled():
            reading.exception()  # asyncio would complain of an error that nobody asks for, as where the taker has left

    async def has_some(self) -> bool:
        """Wait for a round; returns False when there is none and no more will come."""
        while not self._rounds and not self._over:
            self._news.clear()
            await self._news.wait()
        return bool(self._rounds)

    def take(self) -> Round:
        """Take the first round, with those behind it that can be joined to it."""
        together = [self._rounds.popleft()]
        while self._rounds and joinable(together[-1], self._rounds[0]):
            together.append(self._rounds.popleft())
        self._room.set()
        return joined(together)


def joinable(first: Round, second: Round) -> bool:
    """Whether one round can stand for both.

    Nothing is lost by it: neither the statistics, nor a fault for which one of the two would be refused.
    """
    return (
        _is_plain(first)
        and _is_plain(second)
        and first.finish is None
        and second.base_len == first.base_len + len(first.tokens)
        and not second.cached_tokens
        and (first.fallback, first.drafter, first.forced) == (second.fallback, second.drafter, second.forced)
        and bool(first.logprobs) == bool(second.logprobs)
    )


def joined(rounds: Sequence[Round]) -> Round:
    """One round for neighbours of which each can be joined to the next; a single one is returned as it is."""
    first, last = rounds[0], rounds[-1]
    if len(rounds) == 1:
        return first
    timings = [each.timing for each in rounds]
    return replace(
        first,
        tokens=tuple(chain.from_iterable(each.tokens for each in rounds)),
        origins=tuple(chain.from_iterable(each.origins for each in rounds)),
        logprobs=tuple(chain.from_iterable(each.logprobs for each in rounds)),
        finish=last.finish,
        speedup=last.speedup,
        timing=Timing(
            sum(each.draft for each in timings),
            sum(each.queue for each in timings),
            sum(each.verify for each in timings),
        ),
    )


def _is_plain(verified: Round) -> bool:
    """Whether a round has no draft and no detail; its lists must fit, since joining would hide that they do not."""
    count = len(verified.tokens)
    return (
        count > 0
        and not verified.draft
        and not verified.accepted
        and verified.detail is None
        and len(verified.origins) == count
        and len(verified.logprobs) in (0, count)
    )
