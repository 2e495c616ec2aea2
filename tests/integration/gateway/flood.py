"""Many concurrent requests, sent from a process of their own so that the gateway's process does not pay for them."""

import asyncio
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TIMEOUT = 120.0
"""Seconds in which every request must be answered."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    text: str
    """The response body."""

    @property
    def code(self) -> str:
        """Code of the error; empty for an answer without an error and for a stream."""
        return str(json.loads(self.text).get("error", {}).get("code", "")) if self.text.startswith("{") else ""


class Attacker:
    """Sends floods of requests."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    async def flood(self, address: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        """Send completions all at once and return their answers."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, _flood, address, bodies)


@contextmanager
def attacker() -> Iterator[Attacker]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield Attacker(executor)


def _flood(address: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    return asyncio.run(_all(address, [json.dumps(body).encode() for body in bodies]))


async def _all(address: str, raw: Sequence[bytes]) -> list[Answer]:
    async with asyncio.timeout(TIMEOUT):
        return await asyncio.gather(*(_post(address, body) for body in raw))


async def _post(address: str, raw: bytes) -> Answer:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = ("POST /v1/completions HTTP/1.1", f"Host: {host}", "Connection: close", f"Content-Length: {len(raw)}")
    writer.write("\r\n".join((*head, "", "")).encode() + raw)
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    text = (await reader.read()).decode()
    writer.close()
    return Answer(int(status.split()[1]), headers, text)
