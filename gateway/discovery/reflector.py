"""Keeps a collection of Kubernetes objects up to date: LIST, then WATCH, and LIST again after every error.

A missed DELETED event leaves no stale object, because the LIST after a broken watch replaces everything. The client
times out a silent watch by its own clock, because the connection may be lost without notice.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import structlog

Object = Mapping[str, Any]
Call = Callable[..., Awaitable[Any]]
"""A method `list_…_without_preload_content` of the client, with namespace and selector bound."""

_FIRST_RETRY = 0.2
"""Seconds before the first retry; every further pause is twice as long."""
_LAST_RETRY = 10.0
"""The longest pause before a retry, in seconds."""

_log = structlog.get_logger()


class Reflector:
    """The objects of one LIST call."""

    def __init__(self, watch: float, slack: float) -> None:
        """Make a reflector without objects.

        Args:
            watch: seconds for which the server keeps one watch open.
            slack: seconds for which the client waits longer for its end; also seconds that a LIST may take.
        """
        self._watch = watch
        self._slack = slack
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._heard = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the API server last sent something."""
        return time.monotonic() - self._heard

    async def states(self, call: Call) -> AsyncGenerator[list[Object]]:
        """All objects of `call`, after every LIST and every change, without an end.

        The objects stay as they are while the API server does not answer.
        """
        retry = _FIRST_RETRY
        while True:
            try:
                await self._list(call)
                retry = _FIRST_RETRY
                yield list(self._objects.values())
                while True:  # a watch that ends without an error goes on where it was
                    async with aclosing(self._events(call)) as events:
                        async for event in events:
                            if self._apply(event):
                                yield list(self._objects.values())
                    self._heard = time.monotonic()
                    await _pause(_FIRST_RETRY)
            except Exception as error:  # noqa: BLE001 - every error is answered with another LIST
                _log.warning("watch_restarts", error=f"{type(error).__name__}: {error}", objects=len(self._objects))
            await _pause(retry)
            retry = min(retry * 2, _LAST_RETRY)

    async def _list(self, call: Call) -> None:
        async with self._response(call()) as response, asyncio.timeout(self._slack):
            answer = json.loads(await response.read())
        self._objects = {_name(each): each for each in answer["items"]}
        self._version = answer["metadata"]["resourceVersion"]
        self._heard = time.monotonic()

    async def _events(self, call: Call) -> AsyncGenerator[Object]:
        give_up = asyncio.get_running_loop().time() + self._watch + self._slack
        answer = call(
            watch=True,
            allow_watch_bookmarks=True,
            resource_version=self._version,
            timeout_seconds=round(self._watch),
        )
        async with self._response(answer) as response:
            while line := await _line(response, give_up):
                yield json.loads(line)

    def _apply(self, event: Object) -> bool:
        """Apply an event; return whether it changed an object."""
        kind, each = event["type"], event["object"]
        self._heard = time.monotonic()
        if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            raise ConnectionError(f"{kind}: {each.get('reason', '')} {each.get('message', '')}")
        self._version = each["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        if kind == "DELETED":
            self._objects.pop(_name(each), None)
        else:
            self._objects[_name(each)] = each
        return True

    @asynccontextmanager
    async def _response(self, answer: Awaitable[Any]) -> AsyncIterator[Any]:
        async with asyncio.timeout(self._slack):
            response = await answer
        try:
            response.raise_for_status()
            yield response
        finally:
            response.close()


async def _line(response: Any, give_up: float) -> bytes:
    async with asyncio.timeout_at(give_up):
        line: bytes = await response.content.readline()
    if line and not line.endswith(b"\n"):
        raise ConnectionError("the stream broke in the middle of an event")
    return line


async def _pause(seconds: float) -> None:
    """Sleep for a random part of the time, so that clients do not come all at once."""
    await asyncio.sleep(seconds * random.uniform(0.5, 1.0))


def _name(each: Object) -> str:
    metadata = each["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
