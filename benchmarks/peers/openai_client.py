"""A client of servers with OpenAI's `/v1/completions` that records the tokens and their times.

Received bytes are only stored while streams run and parsed after all have ended, so that the client takes little time
on the cores that it shares with the servers.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx2

from benchmarks.run import Ask, Run, Slice, gaps_of
from specdec.errors import InternalError

_SECONDS = 300.0
"""Seconds within which a stream must send something."""
_DATA, _END = b"data:", b"[DONE]"

Pieces = Sequence[tuple[float, bytes]]
"""Pieces of a reply in order, each with its arrival time in seconds. Piece boundaries are arbitrary."""


@dataclass(frozen=True, slots=True)
class OpenAiClient:
    """Requests token ids from one server."""

    url: str
    """Base URL, without `/v1`."""
    model: str

    def together(self, asks: Sequence[Ask], extra: Mapping[str, Any], streams: int | None = None) -> Slice:
        """Run all generations at once, or by `streams` streams. `extra` are server-specific fields.

        The first answers of streams are shorter, each by a different share, so that answers do not begin and end
        together. Otherwise all prompts could be read before the first counted token, or a stream that ends early could
        end a slice whose prompts are all read and whose tokens are not.

        Raises:
            InternalError: the server refuses a request, or a stream ends early.
        """
        return asyncio.run(self._together(asks, extra, streams))

    async def _together(self, asks: Sequence[Ask], extra: Mapping[str, Any], streams: int | None) -> Slice:
        count = streams or len(asks)
        steady = count < len(asks)
        asks = [*map(partial(_staggered, streams=count), range(count), asks), *asks[count:]] if steady else asks
        answers, left, idle = dict[int, tuple[float, Pieces]](), iter(enumerate(asks)), list[float]()

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
        return slice_of(asks, in_order, (count, min(idle)) if steady else None)

    async def _answer(self, client: httpx2.AsyncClient, body: Mapping[str, Any]) -> tuple[float, Pieces]:
        pieces, started = list[tuple[float, bytes]](), time.perf_counter()
        async with client.stream("POST", f"{self.url}/v1/completions", json=body) as reply:
            async for piece in reply.aiter_raw():
                pieces.append((time.perf_counter(), piece))
        if reply.status_code != httpx2.codes.OK:
            raise InternalError(f"HTTP {reply.status_code}: {b''.join(each for _, each in pieces).decode()}")
        return started, pieces

    def body(self, ask: Ask) -> dict[str, Any]:
        """Return the request. It has no seed, because a seed can crash vLLM's engine on a CPU."""
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


def _staggered(number: int, ask: Ask, streams: int) -> Ask:
    """Return the first ask of a stream."""
    return replace(ask, tokens=max(2, ask.tokens * (number + 1) // streams))


def slice_of(
    asks: Sequence[Ask], answers: Sequence[tuple[float, Pieces]], steady: tuple[int, float] | None = None
) -> Slice:
    """Return the slice from the first request to the last token, or the slice of the steady load.

    Args:
        answers: answers with the time of their request.
        steady: number of streams, whose first answers come first, and the time at which one had nothing left to ask.
    """
    begun = [started for started, _ in answers]
    runs = [run_of(ask, *answer) for ask, answer in zip(asks, answers, strict=True)]
    at = list(zip(begun, runs, strict=True))
    if steady is None:
        return Slice(max(started + run.seconds for started, run in at) - min(begun), runs)
    streams, ended = steady
    heard = max(started + run.first for started, run in at[:streams])
    outside = sum(len(run.tokens) - run.after(heard - started) + run.after(ended - started) for started, run in at)
    return Slice(ended - heard, runs, outside)


def run_of(ask: Ask, started: float, pieces: Pieces) -> Run:
    """Return the streamed generation, with the times of its pieces.

    Raises:
        InternalError: the stream reports an error, or does not have the requested number of tokens.
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
    # There is no time between tokens that came together.
    gaps = [gap for gap, count in zip(gaps_of(times), counts[1:], strict=True) for gap in (gap, *[0.0] * (count - 1))]
    return Run(tuple(tokens), times[-1] - started, times[0] - started, counts[0], len(times), gaps=tuple(gaps))


def events(pieces: Pieces) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yield each event of a stream, with the time of the piece that ended its line."""
    rest = b""
    for when, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(_DATA).strip()
            if line.startswith(_DATA) and data != _END:
                yield when, json.loads(data)
