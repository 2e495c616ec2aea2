"""A steady load: clients that send the next request whenever an answer has ended, and additional bursts."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import cycle
from statistics import linear_regression

from benchmarks.run import Ask

Answer = Callable[[Ask], AsyncGenerator[int]]
"""Streams the number of tokens of each round of an answer. Closing it cancels the generation."""
BURSTS = 0.5
"""Seconds between two bursts."""
_LINE = 8
"""Least number of distinct times for a linear fit."""
_CANCELLED_SECONDS = 0.1
"""Seconds within which gRPC handles cancelled calls. It logs errors if their event loop closes first."""


@dataclass
class _Arrived:
    """Tokens received by all clients."""

    answer: Answer
    silent: set[int]
    """Clients without a token so far."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once each client has a token."""
    times: list[float] = field(default_factory=list)
    """Arrival time of each token."""

    async def read(self, ask: Ask, client: int | None = None) -> None:
        """Read an answer, of a client or of a burst."""
        async with aclosing(self.answer(ask)) as rounds:
            async for committed in rounds:
                self.times.extend([time.perf_counter()] * committed)
                if client in self.silent:
                    self.silent.discard(client)
                    if not self.silent:
                        self.heard.set()


async def steady_rate(
    answer: Answer, asks: Sequence[Ask], streams: int, seconds: float, burst: Sequence[Ask] = ()
) -> float:
    """Return the tokens a second of `streams` clients and bursts.

    Each client takes every `streams`-th ask, and starts over after the last. The first answers are shorter, each by a
    different share, so that the clients do not restart together. The count begins once all clients have a token, with a
    burst.
    """
    arrived = _Arrived(answer, set(range(streams)))

    async def client(number: int) -> None:
        own = asks[number::streams]
        await arrived.read(replace(own[0], tokens=max(2, own[0].tokens * (number + 1) // streams)), number)
        for ask in cycle([*own[1:], own[0]]):
            await arrived.read(ask)

    async def bursts() -> None:
        while burst:
            running.update(group.create_task(arrived.read(ask)) for ask in burst)
            await asyncio.sleep(BURSTS)

    async with asyncio.TaskGroup() as group:
        running = {group.create_task(client(number)) for number in range(streams)}
        await arrived.heard.wait()
        started = time.perf_counter()
        running.add(group.create_task(bursts()))
        await asyncio.sleep(seconds)
        ended = time.perf_counter()
        for each in running:
            each.cancel()
    await asyncio.sleep(_CANCELLED_SECONDS)
    return rate([at for at in arrived.times if started < at <= ended], ended - started)


def rate(times: Sequence[float], seconds: float) -> float:
    """Return the tokens a second, from the arrival times of the tokens within `seconds`.

    The rate is the slope of the token count over time, if there are enough distinct times. Tokens of a pass arrive
    together, so a plain count would depend on whether a slice ends just before or after a pass.
    """
    if len(set(times)) < _LINE:
        return len(times) / seconds
    return linear_regression(times, range(len(times))).slope
