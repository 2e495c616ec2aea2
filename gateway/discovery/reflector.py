"""Keeps a collection of Kubernetes objects up to date: LIST, then WATCH, and LIST again after every error.

A missed DELETED event leaves no stale object, because the LIST after a broken watch replaces everything. A watch that
falls silent is given up by the clock of the client, because the connection may be gone without notice.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

Object = Mapping[str, Any]
Call = Callable[..., Awaitable[Any]]
"""A method `list_…_without_preload_content` of the client, with namespace and selector bound."""

_OK = 200

_log = structlog.get_logger()


class OutOfStep(Exception):
    """The objects may not be up to date any more."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Timeouts of a watch, in seconds."""

    watch: float = 60.0
    """How long the server keeps one watch open."""
    slack: float = 5.0
    """How much longer the client waits for its end; also how long a LIST may take."""
    first_retry: float = 0.2
    """The pause before the first retry; every further one is twice as long."""
    last_retry: float = 10.0
    """The longest pause before a retry."""


class Reflector:
    """The objects of one LIST call."""

    def __init__(self, call: Call, times: WatchTimes) -> None:
        self._call = call
        self._times = times
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._heard = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the API server last sent something."""
        return time.monotonic() - self._heard

    async def states(self) -> AsyncGenerator[list[Object]]:
        """All objects, after every LIST and every change; without an end, also while the API server does not answer."""
        retry = self._times.first_retry
        while True:
            try:
                await self._list()
                retry = self._times.first_retry
                yield list(self._objects.values())
                while True:  # a watch that ends without an error goes on where it was
                    async with aclosing(self._events()) as events:
                        async for event in events:
                            if self._apply(event):
                                yield list(self._objects.values())
                    self._heard = time.monotonic()
                    await _pause(self._times.first_retry)
            except Exception as error:  # noqa: BLE001 - every error is answered with another LIST
                _log.warning("watch_restarts", error=f"{type(error).__name__}: {error}", objects=len(self._objects))
            await _pause(retry)
            retry = min(retry * 2, self._times.last_retry)

    async def _list(self) -> None:
        async with self._asked() as response, asyncio.timeout(self._times.slack):
            answer = json.loads(await response.read())
        self._objects = {_name(each): each for each in answer["items"]}
        self._version = answer["metadata"]["resourceVersion"]
        self._heard = time.monotonic()

    async def _events(self) -> AsyncGenerator[Object]:
        times = self._times
        give_up = asyncio.get_running_loop().time() + times.watch + times.slack
        async with self._asked(
            watch=True,
            allow_watch_bookmarks=True,
            resource_version=self._version,
            timeout_seconds=round(times.watch),
        ) as response:
            while line := await _line(response, give_up):
                yield json.loads(line)

    def _apply(self, event: Object) -> bool:
        """Apply an event; True when it changed an object."""
        kind, each = event["type"], event["object"]
        self._heard = time.monotonic()
        if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            raise OutOfStep(f"{kind}: {each.get('reason', '')} {each.get('message', '')}")
        self._version = each["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        if kind == "DELETED":
            self._objects.pop(_name(each), None)
        else:
            self._objects[_name(each)] = each
        return True

    @asynccontextmanager
    async def _asked(self, **arguments: Any) -> AsyncIterator[Any]:
        async with asyncio.timeout(self._times.slack):
            response = await self._call(**arguments)
        try:
            if response.status != _OK:
                raise OutOfStep(f"the API server answers {response.status}")
            yield response
        finally:
            response.close()


async def _line(response: Any, give_up: float) -> bytes:
    async with asyncio.timeout_at(give_up):
        line: bytes = await response.content.readline()
    if line and not line.endswith(b"\n"):
        raise OutOfStep("the stream broke in the middle of an event")
    return line


async def _pause(seconds: float) -> None:
    """Sleep for a random part of the time, so that clients do not come all at once."""
    await asyncio.sleep(seconds * random.uniform(0.5, 1.0))


def _name(each: Object) -> str:
    metadata = each["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
