"""Leaves off waiting for the next of many things when something else happens."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from gateway.tasks import end

_Item = TypeVar("_Item")


async def until_set(items: AsyncGenerator[_Item], event: asyncio.Event) -> AsyncGenerator[_Item]:
    """The items up to the moment `event` is set; the one that is waited for then is cancelled, and `items` with it."""
    stop = asyncio.create_task(event.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(items))
            try:
                await asyncio.wait((following, stop), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not following.done():
                    await end(following)
            if following.cancelled():
                return
            try:
                item = following.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        await end(stop)
