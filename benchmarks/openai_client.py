"""A client of servers that speak OpenAI's `/v1/completions`: it notes when tokens came, and which.

What arrives is only kept while streams run, and read when all have ended, so that the client takes little of the cores
that the servers share with it.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from benchmarks.run import Ask, Run, Slice, gaps_of
from specdec.errors import InternalError

_SECONDS = 300.0
"""Within which a stream has to say something."""
_DATA, _END = b"data:", b"[DONE]"

Pieces = Sequence[tuple[float, bytes]]
"""What arrived, in order, with the time in seconds of each piece; pieces are cut anywhere."""


@dataclass(frozen=True, slots=True)
class OpenAiClient:
    """Asks one server for token ids."""

    url: str
    """Base URL, without `/v1`."""
    model: str

    def together(self, asks: Sequence[Ask], extra: Mapping[str, Any], streams: int | None = None) -> Slice:
        """Run all generations at once, or by so many streams; `extra` are fields of the server's own.

        Raises:
            InternalError: the server refuses one, or a stream ends early.
        """
        return asyncio.run(self._together(asks, extra, streams))

    async def _together(self, asks: Sequence[Ask], extra: Mapping[str, Any], streams: int | None) -> Slice:
        answers, left, idle = dict[int, tuple[float, Pieces]](), iter(enumerate(asks)), list[float]()
        count = streams or len(asks)

        async def stream() -> None:
            for number, ask in left:
                answers[number] = await self._answer(client, {**self.body(ask), **extra})
            idle.append(time.perf_counter())

        limits = httpx2.Limits(max_connections=count)
        async with httpx2.AsyncClient(timeout=_SECONDS, trust_env=False, limits=limits) as client:
            try:
                await asyncio.gather(*(stream() for _ in range(count)))
            except httpx2.HTTPError as error:
                raise InternalError(f"{type(error).__name__}: {error}") from error
        in_order = [answers[number] for number in range(len(asks))]
        return slice_of(asks, in_order, min(idle) if count < len(asks) else None)

    async def _answer(self, client: httpx2.AsyncClient, body: Mapping[str, Any]) -> tuple[float, Pieces]:
        pieces, started = list[tuple[float, bytes]](), time.perf_counter()
        async with client.stream("POST", f"{self.url}/v1/completions", json=body) as reply:
            async for piece in reply.aiter_raw():
                pieces.append((time.perf_counter(), piece))
        if reply.status_code != httpx2.codes.OK:
            raise InternalError(f"HTTP {reply.status_code}: {b''.join(each for _, each in pieces).decode()}")
        return started, pieces

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request; it has no seed, because vLLM's engine can end by one on a CPU."""
        return {
            "model": self.model,
            "prompt": list(ask.prompt),
            "max_tokens": ask.tokens,
            "temperature": ask.temperature,
            "top_p": 1.0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            "cache_salt": secrets.token_hex(8),
        }


def slice_of(asks: Sequence[Ask], answers: Sequence[tuple[float, Pieces]], ended: float | None) -> Slice:
    """What was streamed until then, or until the last token; answers are with the time of their request."""
    begun = [started for started, _ in answers]
    runs = [run_of(ask, *answer) for ask, answer in zip(asks, answers, strict=True)]
    if ended is None:
        return Slice(max(at + run.seconds for at, run in zip(begun, runs, strict=True)) - min(begun), runs)
    late = sum(run.after(ended - at) for at, run in zip(begun, runs, strict=True))
    return Slice(ended - min(begun), runs, late)


def run_of(ask: Ask, started: float, pieces: Pieces) -> Run:
    """The generation that was streamed; times are of its first piece and of the pieces behind it.

    Raises:
        InternalError: the stream says so, or has another number of tokens than was asked for.
    """
    times, counts, tokens = list[float](), list[int](), list[int]()
    for when, event in events(pieces):
        if "error" in event:
            raise InternalError(f"the stream ended with {json.dumps(event['error'])}")
        ids = [token for choice in event.get("choices", ()) for token in choice.get("token_ids") or ()]
        if ids:
            times.append(when)
            counts.append(len(ids))
            tokens += ids
    if len(tokens) != ask.tokens:
        raise InternalError(f"the stream has {len(tokens)} tokens of {ask.tokens}")
    # Tokens that came together have no time between them.
    gaps = [gap for gap, count in zip(gaps_of(times), counts[1:], strict=True) for gap in (gap, *[0.0] * (count - 1))]
    return Run(tuple(tokens), times[-1] - started, times[0] - started, counts[0], len(times), gaps=tuple(gaps))


def events(pieces: Pieces) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Each event of a stream, with the time of the piece that ended its line."""
    rest = b""
    for when, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(_DATA).strip()
            if line.startswith(_DATA) and data != _END:
                yield when, json.loads(data)
