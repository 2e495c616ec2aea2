"""Many streams of OpenAI completions to one server, from a client process that uses little processor time.

`python -m benchmarks.host_path.load` reads a `Load` as a line of JSON and answers with a `Loaded`. Bare asyncio
protocols read the sockets. Received bytes are only stored while streams run, and are parsed after all have ended.
"""

import asyncio
import gc
import json
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress
from operator import not_
from typing import Any, cast

import uvloop

from benchmarks.peers.lines import LineProcess

_DATA, _DONE = b"data: {", b"data: [DONE]"
_COUNT = re.compile(rb'"completion_tokens": ?(\d+)')
_ACCEPTED = re.compile(rb'"num_accepted_draft_tokens": ?(\d+)')
_SHOWN = 300
"""Characters of a refusal that are shown."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests by a number of streams. Each stream sends its next request when its answer has ended."""

    address: str
    """Host and port of the server."""
    requests: Sequence[Mapping[str, Any]]
    """Request bodies. Stream i of n sends those at i, i + n, and so on."""
    streams: int
    limit: float = 600.0
    """Seconds after which unfinished answers count as refused."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Results of a load."""

    seconds: float
    """Seconds from the first request to the end of the last answer."""
    tokens: int
    """Tokens of whole answers."""
    firsts: Sequence[float]
    """Seconds from each request to the first event of its stream. Empty for whole answers."""
    refused: int
    """Number of requests without a whole answer."""
    reason: str
    """Reply to the first such request, or the error of its connection."""
    cpu: float
    """Seconds of processor time of the client."""
    text: str
    """The answer to the first request."""
    round_tokens: float | None
    """Tokens per round of that answer, or None if the server does not report accepted drafts."""

    @property
    def speed(self) -> float:
        """Tokens a second of all streams together."""
        return self.tokens / self.seconds


class Client(LineProcess):
    """The client in its own process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__([sys.executable, "-m", __name__], environment)

    def run(self, load: Load) -> Loaded:
        """Send the load, and return its results."""
        return Loaded(**self.ask(asdict(load)))


@dataclass(slots=True, eq=False)
class Answer(asyncio.Protocol):
    """The connection of one request."""

    request: bytes
    ended: "asyncio.Future[None]"
    started: float = 0.0
    first: float = 0.0
    """Time of the first event."""
    pieces: list[bytes] = field(default_factory=list)
    transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.transport = cast("asyncio.WriteTransport", transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Store the received bytes."""
        if not self.first and _DATA in data:
            self.first = time.perf_counter()
        self.pieces.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        """End the answer, whole or not."""
        if not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        """Close the connection, if there is one."""
        if self.transport is not None:
            self.transport.abort()

    def content(self) -> bytes:
        """Body of the reply, or empty for a refusal."""
        head, _, body = b"".join(self.pieces).partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            return b""
        return b"".join(_chunks(body)) if b"transfer-encoding: chunked" in head.lower() else body

    def tokens(self) -> int:
        """Tokens that the server counts in the whole answer, or 0 if it is not whole."""
        content = self.content().strip()
        ended = content.endswith(_DONE if _DATA in content else b"}")
        counts = _COUNT.findall(content) if ended else []
        return int(counts[-1]) if counts else 0


async def send(load: Load) -> Loaded:
    """Send all requests."""
    host, _, port = load.address.rpartition(":")
    loop, head = asyncio.get_running_loop(), _head(load.address)
    answers = [Answer(_posted(head, body), loop.create_future()) for body in load.requests]
    broken = list[str]()

    async def stream(own: Sequence[Answer]) -> None:
        for answer in own:
            answer.started = time.perf_counter()
            try:
                await loop.create_connection(lambda answer=answer: answer, host, int(port))  # type: ignore[misc]
            except OSError as error:
                broken.append(str(error))
            else:
                await answer.ended

    spent, started = time.process_time(), time.perf_counter()
    try:
        async with asyncio.timeout(load.limit):
            await asyncio.gather(*(stream(answers[number :: load.streams]) for number in range(load.streams)))
    except TimeoutError:
        broken.append(f"answers had not ended after {load.limit:g} s")
        for answer in answers:
            answer.abort()
    seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    return _loaded(load, answers, seconds, cpu, broken)


def _loaded(load: Load, answers: Sequence[Answer], seconds: float, cpu: float, broken: Sequence[str]) -> Loaded:
    counted = [(answer, answer.tokens()) for answer in answers]
    whole = [count >= body["max_tokens"] for (_, count), body in zip(counted, load.requests, strict=True)]
    replies = (
        b"".join(answer.pieces)[:_SHOWN].decode(errors="replace") for answer in compress(answers, map(not_, whole))
    )
    refused = len(whole) - sum(whole)
    return Loaded(
        seconds=seconds,
        tokens=sum(count for _, count in compress(counted, whole)),
        firsts=[answer.first - answer.started for answer in compress(answers, whole) if answer.first],
        refused=refused,
        reason=next((each for each in (*broken, *replies) if each), "no answer") if refused else "",
        cpu=cpu,
        text=text_of(answers[0].content()) if whole[0] else "",
        round_tokens=round_tokens(answers[0].content(), counted[0][1]),
    )


def _head(address: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", f"Host: {address}", "Content-Type: application/json", "Connection: close"]
    return "\r\n".join(lines).encode()


def _posted(head: bytes, body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(content) + content


def _chunks(body: bytes) -> Iterator[bytes]:
    """Yield the data of a chunked body, which may end early."""
    at = 0
    while (line := body.find(b"\r\n", at)) > at and (size := int(body[at:line], 16)):
        yield body[line + 2 : line + 2 + size]
        at = line + size + 4


def text_of(content: bytes) -> str:
    """Return the text of a body, or of all its events."""
    lines = (line.removeprefix(b"data: ") for line in content.splitlines())
    objects = [json.loads(line) for line in lines if line.startswith(b"{")]
    return "".join(choice.get("text", "") for each in objects for choice in each.get("choices", ()))


def round_tokens(content: bytes, tokens: int) -> float | None:
    """Return the mean tokens per round. Each round commits its accepted drafts and one more token."""
    accepted = max(map(int, _ACCEPTED.findall(content)), default=None)
    return None if accepted is None or accepted >= tokens else tokens / (tokens - accepted)


def main() -> None:
    """Answer each line of the input."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    gc.disable()  # a garbage collection would look like a slow answer
    for line in sys.stdin:
        sys.stdout.write(json.dumps(asdict(uvloop.run(send(Load(**json.loads(line)))))) + "\n")
        sys.stdout.flush()
        gc.collect()


if __name__ == "__main__":
    main()
