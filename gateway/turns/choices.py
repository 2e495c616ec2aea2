"""The generations of one request as one stream: they start together, and an error of one ends all."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from gateway.admission import Places
from gateway.turns.events import Event, Started
from specdec.errors import FieldInvalid


async def joined(generations: Sequence[AsyncGenerator[Event]], entrance: Places) -> AsyncGenerator[Event]:
    """The events of a request's generations; once all have begun, each has a place of its own: the entrance is left."""
    async with aclosing(merged(generations) if len(generations) > 1 else generations[0]) as events:
        async for event in events:
            entrance.leave()
            yield event


async def merged(generations: Sequence[AsyncGenerator[Event]]) -> AsyncGenerator[Event]:
    """One Started with the prompts of all, once all have started; then all other events, each with its choice's index.

    Closing the iterator early closes all generations.

    Raises:
        SpecdecError: the error of the generation that failed first.
    """
    waiting: dict[asyncio.Task[Event], int] = {}
    try:
        waiting = {_next(each): index for index, each in enumerate(generations)}
        started = await asyncio.gather(*waiting)
        waiting = {_next(each): index for index, each in enumerate(generations)}
        begun = [each for each in started if isinstance(each, Started)]
        yield replace(begun[0], prompts=tuple(each.header.prompt for each in begun))
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: waiting[task]):
                index = waiting.pop(task)
                if (event := _event(task)) is not None:
                    waiting[_next(generations[index])] = index
                    yield event if isinstance(event, Started) else replace(event, choice=index)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for generation in generations:
            await generation.aclose()


def _next(generation: AsyncGenerator[Event]) -> "asyncio.Task[Event]":
    return asyncio.ensure_future(anext(generation))


def _event(task: "asyncio.Task[Event]") -> Event | None:
    """The event that a task waited for; None when the generation has ended."""
    try:
        return task.result()
    except StopAsyncIteration:
        return None


def skips_of(after: Sequence[int], choices: int) -> Sequence[int]:
    """For each choice, how many output tokens the caller has; raises FieldInvalid for another number of choices."""
    if after and len(after) != choices:
        raise FieldInvalid(f"the generation has {choices} choices, and the cursor speaks of {len(after)}", "received")
    return after or (0,) * choices
