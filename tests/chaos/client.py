"""Clients that want their whole answer: whatever breaks, they come back for the rest."""

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx2

from tests.chaos.stream import Scenario, Stream
from tests.chaos.way_back import Restart, WayBack

PATIENCE = 120.0
"""Seconds after which a client gives its answer up."""
SILENCE = 2.5
"""Seconds without a byte after which a client takes its connection for dead; gateways send comments more often."""
_PAUSE = 0.1


class Interrupted(Exception):
    """The stream ended before the generation did."""


class Client:
    """Asks for one answer after the other."""

    def __init__(self, number: int, doors: Sequence[str], way_back: WayBack | None = None) -> None:
        """`doors` are base URLs, tried in turn; the first is the client's own."""
        self._doors = [*doors[number % len(doors) :], *doors[: number % len(doors)]]
        self._way_back = way_back or Restart()
        self._reading: asyncio.Task[None] | None = None

    def leave(self) -> None:
        """Go away in the middle of whatever is being read, and come back."""
        if self._reading is not None:
            self._reading.cancel()

    async def ask(self, scenario: Scenario) -> Stream:
        """The answer to a scenario; without a finish when the client gave up."""
        stream = Stream(scenario.name)
        async with httpx2.AsyncClient(timeout=SILENCE, trust_env=False) as http:
            for door in itertools.cycle(self._doors):
                why = await self._connection(http, door, scenario, stream)
                if stream.finish or time.monotonic() > stream.began + PATIENCE:
                    break
                stream.interruptions.append(why)
                await asyncio.sleep(_PAUSE)
        return stream

    async def _connection(self, http: httpx2.AsyncClient, door: str, scenario: Scenario, stream: Stream) -> str:
        """One connection, and why it ended."""
        self._reading = asyncio.create_task(self._read(http, door, scenario, stream))
        try:
            await asyncio.wait([self._reading])
        finally:
            self._reading.cancel()
        if self._reading.cancelled():
            return "the client left"
        match self._reading.exception():
            case None:
                return ""
            case Interrupted() as interrupted:
                return str(interrupted)
            case httpx2.TransportError() as broken:
                return type(broken).__name__
            case bug:
                raise bug

    async def _read(self, http: httpx2.AsyncClient, door: str, scenario: Scenario, stream: Stream) -> None:
        again = self._way_back.begins_anew(stream)
        request = self._way_back.request(http, door, scenario, stream)
        response = await http.send(request, stream=True)
        try:
            if response.status_code != httpx2.codes.OK:
                raise Interrupted(f"{response.status_code} {json.loads(await response.aread())['error']['code']}")
            name = ""
            async for line in response.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    name = value
                elif field == "data" and value != "[DONE]":
                    _take(stream, name, json.loads(value), again)
        finally:
            await response.aclose()
        if not stream.finish:
            raise Interrupted("the stream ended early")


def _take(stream: Stream, name: str, chunk: dict[str, Any], again: bool) -> None:
    if "error" in chunk:
        raise Interrupted(chunk["error"]["code"] or chunk["error"]["message"])
    for choice in chunk["choices"]:
        stream.take(name, choice.get("token_ids") or [], choice["text"], again=again)
        stream.finish = choice["finish_reason"] or ""
