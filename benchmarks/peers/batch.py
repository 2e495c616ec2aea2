"""An engine and its scheduler in a separate process without a network: one JSON value a line in, one out."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TextIO

from benchmarks.peers.lines import LineProcess
from benchmarks.run import Ask
from benchmarks.systems.steady import rate

Heard = Callable[[int, Sequence[int]], None]
"""Receives the next tokens of the ask with that number."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers generated together."""

    outputs: Sequence[Sequence[int]]
    """The tokens of each answer."""
    speed: float
    """Tokens a second, from the time all answers have begun until the first ends, so that all are in every pass."""


class Engine(LineProcess):
    """An engine in its own process."""

    def together(self, asks: Sequence[Ask]) -> Batch:
        """Answer all asks at once."""
        return Batch(**self.ask([asdict(ask) for ask in asks]))


def answers() -> TextIO:
    """Return the stream for this process's answers. Output of libraries is redirected to stderr."""
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return told


async def serve(answer: Callable[[Sequence[Ask], Heard], Awaitable[None]], told: TextIO) -> None:
    """Answer every line of the input until it ends."""
    told.write("ready\n")
    told.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        asks = [Ask(tuple(each["prompt"]), each["tokens"], each["temperature"], each["seed"], each["gamma"],
                    drafter=each["drafter"])
                for each in json.loads(line)]  # fmt: skip
        told.write(json.dumps(asdict(await timed(answer, asks))) + "\n")
        told.flush()


async def timed(answer: Callable[[Sequence[Ask], Heard], Awaitable[None]], asks: Sequence[Ask]) -> Batch:
    """Return the answers, and their speed once all have begun."""
    outputs: list[list[int]] = [[] for _ in asks]
    times, began, ended = list[float](), 0.0, 0.0

    def heard(number: int, tokens: Sequence[int]) -> None:
        nonlocal began, ended
        outputs[number] += tokens
        now = time.perf_counter()
        if began and not ended:
            times.extend([now] * len(tokens))
        began = began or (now if all(outputs) else 0.0)
        ended = ended or (now if len(outputs[number]) >= asks[number].tokens else 0.0)

    await answer(asks, heard)
    return Batch(outputs, rate(times, ended - began))
