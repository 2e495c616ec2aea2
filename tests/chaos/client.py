"""Clients that request the whole answer: after a broken connection, they connect again for the rest."""

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx2

from tests.chaos.stream import Scenario, Stream

PATIENCE = 120.0
"""Seconds without a token after which a client gives up."""
SILENCE = 2.5
"""Seconds without a byte after which a client closes its connection. Gateways send comments more often."""
_PAUSE = 0.1
"""Seconds between two connections."""
_GONE = ("generation_not_found", "session_not_found", "session_expired", "log_rolled_back")
"""Error codes after which the rest of the answer is no longer available."""


class Interrupted(Exception):
    """The stream ended before the generation did."""


class Client:
    """A client that requests one answer after another."""

    def __init__(self, number: int, urls: Sequence[str]) -> None:
        """Try the gateways' base URLs in turn, beginning at a URL chosen by the client's `number`."""
        self._urls = [*urls[number % len(urls) :], *urls[: number % len(urls)]]
        self._reading: asyncio.Task[None] | None = None
        self.streams: list[Stream] = []
        """Every answer that was requested, the last one maybe unfinished."""

    def leave(self) -> None:
        """Close the connection in the middle of the answer. The client then connects again."""
        if self._reading is not None:
            self._reading.cancel()

    async def ask(self, scenario: Scenario) -> Stream:
        """Request the answer to a scenario. Its `finish` is empty if the client gave up."""
        stream = Stream(scenario.name)
        self.streams.append(stream)
        async with httpx2.AsyncClient(timeout=SILENCE, trust_env=False) as http:
            for url in itertools.cycle(self._urls):
                why = await self._connection(http, url, scenario, stream)
                if stream.finish:
                    break
                stream.interruptions.append(why)
                if why in _GONE or time.monotonic() > stream.progressed + PATIENCE:
                    break
                await asyncio.sleep(_PAUSE)
        return stream

    async def _connection(self, http: httpx2.AsyncClient, url: str, scenario: Scenario, stream: Stream) -> str:
        """Read from one connection, and return why it ended, or "" if the answer is complete."""
        self._reading = asyncio.create_task(self._read(http, url, scenario, stream))
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

    async def _read(self, http: httpx2.AsyncClient, url: str, scenario: Scenario, stream: Stream) -> None:
        response = await http.send(_request(http, url, scenario, stream), stream=True)
        try:
            if response.status_code != httpx2.codes.OK:
                raise _interrupted(json.loads(await response.aread()))
            name = ""
            async for line in response.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    name = value
                elif field == "data" and value != "[DONE]":
                    _take(stream, name, json.loads(value))
        finally:
            await response.aclose()
        if not stream.finish:
            raise Interrupted("the stream ended early")


def _request(http: httpx2.AsyncClient, url: str, scenario: Scenario, stream: Stream) -> httpx2.Request:
    """Return the request for the rest of a named generation, or for the generation of the key if it has no name yet."""
    if stream.last_event:
        generation = stream.last_event.rpartition(".")[0]
        address = f"{url}/v1/generations/{generation}/events"
        return http.build_request("GET", address, headers={"Last-Event-ID": stream.last_event})
    headers = {"Idempotency-Key": stream.key}
    return http.build_request("POST", f"{url}/v1/completions", json=scenario.body, headers=headers)


def _interrupted(body: dict[str, Any]) -> Interrupted:
    return Interrupted(body["error"]["code"] or body["error"]["message"])


def _take(stream: Stream, name: str, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        raise _interrupted(chunk)
    for choice in chunk["choices"]:
        stream.take(name, choice.get("token_ids") or [], choice["text"])
        stream.finish = choice["finish_reason"] or ""
