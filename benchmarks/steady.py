"""A steady load: as many clients as asks, each of which asks again whenever its answer has ended."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count

from benchmarks.run import Ask

Answer = Callable[[Ask], AsyncGenerator[int]]
"""Streams the tokens of each round of an answer, as counts; closing it cancels the generation."""
_CANCELLED_SECONDS = 0.1
"""Within which gRPC hears the end of calls that were cancelled; it complains once their event loop is closed."""


async def steady_rate(answer: Answer, asks: Sequence[Ask], seconds: float) -> float:
    """Tokens a second of all clients.

    The first answers are shorter, each by another share, so that the clients do not begin anew together. What is
    counted begins once all have had a token.
    """
    arrived, silent, heard = list[float](), set(range(len(asks))), asyncio.Event()

    async def client(number: int, ask: Ask) -> None:
        tokens = max(2, ask.tokens * (number + 1) // len(asks))
        for seed in count(ask.seed, len(asks)):
            async with aclosing(answer(replace(ask, seed=seed, tokens=tokens))) as rounds:
                async for committed in rounds:
                    arrived.extend([time.perf_counter()] * committed)
                    silent.discard(number)
                    if not silent:
                        heard.set()
            tokens = ask.tokens

    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(client(number, ask)) for number, ask in enumerate(asks)]
        await heard.wait()
        started = time.perf_counter()
        await asyncio.sleep(seconds)
        ended = time.perf_counter()
        for each in clients:
            each.cancel()
    await asyncio.sleep(_CANCELLED_SECONDS)
    return sum(started < at <= ended for at in arrived) / (ended - started)
