"""A constant load of all kinds of requests, at a rate independent of the duration of the answers."""

import asyncio
import random
import string
from collections import Counter
from typing import Any

import httpx2

_OPEN = 32
"""Largest number of concurrent requests. A system that is too slow gets fewer requests a second."""
_LETTERS = string.ascii_lowercase + " \n()=:"


class Load:
    """Sends requests until it is stopped."""

    def __init__(self, url: str, rate: float, seed: int) -> None:
        """Set the gateway's `url` and the `rate` in answers a second."""
        self._client = httpx2.AsyncClient(base_url=url, timeout=120, trust_env=False)
        self._pause = 1 / rate
        self._random = random.Random(seed)
        self.answers: Counter[str] = Counter()
        """Number of answers by status, or by the kind of error."""

    async def run(self, seconds: float) -> None:
        """Send requests for that many seconds, and wait for the last answers."""
        places, loop = asyncio.Semaphore(_OPEN), asyncio.get_running_loop()
        until, number = loop.time() + seconds, 0
        async with self._client, asyncio.TaskGroup() as tasks:
            while loop.time() < until:
                await places.acquire()
                tasks.create_task(self._ask(number)).add_done_callback(lambda _: places.release())
                number += 1
                await asyncio.sleep(self._pause)

    async def _ask(self, number: int) -> None:
        try:
            answer = await self._answer(number)
        except httpx2.TransportError as error:
            self.answers[type(error).__name__] += 1
        else:
            whole = "[DONE]" in answer.text or "finish_reason" in answer.text
            self.answers[f"{answer.status_code}{'' if whole else ' not whole'}"] += 1

    async def _answer(self, number: int) -> httpx2.Response:
        """Request one answer: in rotation streamed, in a session, with a key, and sampled in coupled mode."""
        body: dict[str, Any] = {"prompt": self._prompt(), "max_tokens": 24, "user": f"user-{number % 5}"}
        headers = {}
        match number % 4:
            case 0:
                body["stream"] = True
            case 1:
                made = await self._client.post("/v1/sessions", json={"user": body["user"]})
                body["session"] = made.json()["id"]
            case 2:
                headers["idempotency-key"] = f"soak-{number}"
            case _:
                body |= {"seed": number, "speculation": {"mode": "coupled"}}
        return await self._client.post("/v1/completions", json=body, headers=headers)

    def _prompt(self) -> str:
        length = self._random.randrange(20, 400)
        return "".join(self._random.choice(_LETTERS) for _ in range(length))
