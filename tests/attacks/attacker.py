"""Requests from a separate process, so that the cost of sending them is not attributed to the gateway."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

PROMPT = "prompt-that-no-log-may-have"
KEY = "sk-key-that-no-log-may-have"
SECRETS = (PROMPT.encode(), KEY.encode())
"""Texts that must not appear in the log of a gateway under attack."""

Answer = tuple[int, dict[str, Any]]
"""Status and JSON of an answer."""


def post(address: tuple[str, int], path: str, raw: bytes) -> Answer:
    """Send one request."""
    with closing(http.client.HTTPConnection(*address, timeout=120)) as connection:
        connection.request("POST", path, raw, {"Authorization": f"Bearer {KEY}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def flood(address: tuple[str, int], path: str, raw: bytes, count: int) -> list[Answer]:
    """Send `count` concurrent copies of a request."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: post(address, path, raw), range(count)))
