"""Several generations as one: they start together, their events come as they happen, and what fails one fails all."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from gateway.turns.events import Event, Started


async def merged(generations: Sequence[AsyncGenerator[Event]]) -> AsyncGenerator[Event]:
    """The first generation's Started, once all have theirs; then every other event with the place of its generation.

    Closing it early closes them all.

    Raises:
        SpecdecError: what the first of them to fail raised.
    """
    waiting: dict[asyncio.Task[Event], int] = {}
    try:
        waiting = {_next(each): place for place, each in enumerate(generations)}
        started = await asyncio.gather(*waiting)
        waiting = {_next(each): place for place, each in enumerate(generations)}
        yield started[0]
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: waiting[task]):
                place = waiting.pop(task)
                if (event := _event(task)) is not None:
                    waiting[_next(generations[place])] = place
                    yield event if isinstance(event, Started) else replace(event, choice=place)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for generation in generations:
            await generation.aclose()


def _next(generation: AsyncGenerator[Event]) -> "asyncio.Task[Event]":
    return asyncio.ensure_future(anext(generation))


def _event(task: "asyncio.Task[Event]") -> Event | None:
    """None at a generation's end."""
    try:
        return task.result()
    except StopAsyncIteration:
        return None
