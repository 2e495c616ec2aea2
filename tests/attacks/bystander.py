"""An honest caller in its own process, so that the cost of an attack in the test is not attributed to the gateway.

`python -m tests.attacks.bystander HOST PORT OWN` sends requests from the address OWN in a loop and writes the seconds
of each answer.
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
    """Waiting times of the honest caller."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.waits: list[float] = []
        """Seconds of every answer so far. Only status 200 counts as an answer."""

    async def read(self) -> None:
        """Read the caller's output until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.waits.append(float(line))


@asynccontextmanager
async def bystander(address: tuple[str, int], own: str = "127.0.0.1") -> AsyncIterator[Bystander]:
    """Run an honest caller with the address `own` inside the context.

    It completes a request before the body of the context and one after it.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.attacks.bystander", *map(str, address), own),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
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


def main(host: str, port: str, own: str) -> None:
    """Send requests until the process is ended. A refusal ends it with an error."""
    body = json.dumps(HONEST)
    while True:
        connection = http.client.HTTPConnection(host, int(port), timeout=30, source_address=(own, 0))
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
