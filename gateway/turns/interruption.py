"""Stops waiting for the next item of an iterator when something else happens."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from gateway.tasks import cancel_and_wait

_Item = TypeVar("_Item")


async def until_set(items: AsyncGenerator[_Item], event: asyncio.Event) -> AsyncGenerator[_Item]:
    """The items up to the moment `event` is set; the item that is waited for then is cancelled, and `items` ends."""
    stop = asyncio.create_task(event.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(items))
            try:
                await asyncio.wait((following, stop), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not following.done():
                    await cancel_and_wait(following)
            if following.cancelled():
                return
            try:
                item = following.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        await cancel_and_wait(stop)
