"""A link between a verifier and a drafter that stalls and breaks at random times, independent of its bytes."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.chaos.proxy import Proxy


@dataclass(frozen=True)
class Weather:
    """Parameters of the random stalls and cuts. Times are in seconds."""

    stall: float = 0.06
    """Longest stall, in which no byte passes."""
    flow: float = 0.12
    """Longest time between two stalls."""
    cut: float = 0.06
    """Probability that a stall ends by cutting every connection."""


@asynccontextmanager
async def unsteady(drafter: str, seed: int, weather: Weather) -> AsyncIterator[str]:
    """Yield the address of a link to the drafter at the address `drafter`."""
    async with Proxy(drafter) as proxy:
        disturbed = asyncio.create_task(_disturb(proxy, random.Random(seed), weather))
        try:
            yield proxy.address
        finally:
            disturbed.cancel()
            await asyncio.gather(disturbed, return_exceptions=True)


async def _disturb(proxy: Proxy, dice: random.Random, weather: Weather) -> None:
    while True:
        await asyncio.sleep(dice.uniform(0, weather.flow))
        proxy.freeze()
        await asyncio.sleep(dice.uniform(0, weather.stall))
        if dice.random() < weather.cut:
            proxy.cut()
        proxy.thaw()
