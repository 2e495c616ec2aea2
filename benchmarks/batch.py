"""An engine with its scheduler in a process of its own and no network around it: a JSON value a line in, one out."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TextIO

from benchmarks.lines import LineProcess
from benchmarks.run import Ask

Heard = Callable[[int, Sequence[int]], None]
"""Takes the next tokens of the ask of that number."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers that were made together."""

    outputs: Sequence[Sequence[int]]
    """The tokens of each."""
    counted: int
    """Tokens that came once every answer had begun."""
    seconds: float
    """From then on until the last one ended."""

    @property
    def speed(self) -> float:
        """Tokens a second without the time of the prompts."""
        return self.counted / self.seconds


class Engine(LineProcess):
    """An engine in a process of its own."""

    def together(self, asks: Sequence[Ask]) -> Batch:
        """Answer all at once."""
        return Batch(**self.ask([asdict(ask) for ask in asks]))


def answers() -> TextIO:
    """Where this process's answers go; what libraries print goes where errors do from now on."""
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return told


async def serve(answer: Callable[[Sequence[Ask], Heard], Awaitable[None]], told: TextIO) -> None:
    """Answer every line of the input until that ends."""
    told.write("ready\n")
    told.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        asks = [Ask(tuple(each["prompt"]), each["tokens"], each["temperature"], each["seed"], each["gamma"],
                    drafter=each["drafter"])
                for each in json.loads(line)]  # fmt: skip
        told.write(json.dumps(asdict(await timed(answer, asks))) + "\n")
        told.flush()


async def timed(answer: Callable[[Sequence[Ask], Heard], Awaitable[None]], asks: Sequence[Ask]) -> Batch:
    """The answers, and how fast they came once all had begun."""
    outputs: list[list[int]] = [[] for _ in asks]
    counted, began, ended = 0, 0.0, 0.0

    def heard(number: int, tokens: Sequence[int]) -> None:
        nonlocal counted, began, ended
        outputs[number] += tokens
        if began:
            counted, ended = counted + len(tokens), time.perf_counter()
        elif all(outputs):
            began = time.perf_counter()

    await answer(asks, heard)
    return Batch(outputs, counted, ended - began)
