"""An honest caller in a process of its own, so that an attacker's work in the test is not taken for the gateway's.

`python -m tests.attacks.bystander HOST PORT` asks again and again, and writes the seconds of each answer.
"""

import asyncio
import http.client
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
HONEST = {"prompt": "def f(", "max_tokens": 1, "user": "honest"}


class Bystander:
    """How the honest caller fares."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.waits: list[float] = []
        """Seconds of every answer so far; nothing but status 200 counts as an answer."""

    async def read(self) -> None:
        """Read what it writes until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.waits.append(float(line))


@asynccontextmanager
async def bystander(address: tuple[str, int]) -> AsyncIterator[Bystander]:
    """An honest caller that asks inside the context, at least once before and once behind what happens there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.attacks.bystander", *map(str, address), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    seen = Bystander(process)
    reading = asyncio.create_task(seen.read())
    try:
        await _one_more(seen)
        yield seen
        await _one_more(seen)
    finally:
        process.kill()
        await process.wait()
        await reading


async def _one_more(seen: Bystander) -> None:
    count = len(seen.waits)
    async with asyncio.timeout(30):
        while len(seen.waits) == count:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.01)


def main(host: str, port: str) -> None:
    """Ask until the process is ended; a refusal ends it with an error."""
    body = json.dumps(HONEST)
    while True:
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"refused: {answer.read()!r}")
        answer.read()
        connection.close()
        sys.stdout.write(f"{time.perf_counter() - began}\n")
        sys.stdout.flush()
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
