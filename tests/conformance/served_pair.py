"""A drafter and a verifier as services in one process, connected by gRPC, and the tokens they generate."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_service.app import RunningDrafter, drafter
from drafter_service.config import DrafterSettings
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Mode, TreeOptions
from specdec.sampling.params import SamplingParams
from tests.integration.verifier.client import Client, connected, output
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

ANY_PORT = {"address": "127.0.0.1:0", "http": "127.0.0.1:0"}
PATIENCE = 30.0
"""Seconds that a round waits for its draft, enough that no draft is late on a working machine."""


@dataclass(frozen=True)
class Ask:
    """One generation to request. `committed` is the output of an earlier attempt."""

    mode: Mode
    params: SamplingParams
    gamma: int | None
    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[int, ...] = ()
    committed: tuple[int, ...] = ()
    lenience: float | None = None
    logprobs: int | None = None
    drafter: str = ""
    prediction: tuple[int, ...] = ()
    tree: TreeOptions | None = None
    adapter: str = ""


@dataclass(frozen=True)
class Done:
    """The result of a generation, round by round."""

    rounds: Sequence[pb.GenerateResponse]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the generated tokens, without those committed before."""
        return tuple(output(self.rounds))


@asynccontextmanager
async def running_drafter(folder: Path, **settings: Any) -> AsyncIterator[RunningDrafter]:
    """Run a drafter of the model in `folder`, and wait until it is loaded."""
    given = {"model": {"path": folder, "device": "cpu"}, "kv_bytes": 2**26, **ANY_PORT, **settings}
    async with drafter(DrafterSettings.load(None, given)) as running:
        await running.ready()
        yield running


@asynccontextmanager
async def running_verifier(folder: Path, *drafters: str, **settings: Any) -> AsyncIterator[Client]:
    """Yield a client of a verifier of the model in `folder` that has met all of its drafters."""
    given = {
        "model": {"path": folder, "device": "cpu"},
        "kv_bytes": 2**26,
        "drafters": drafters,
        "drafting": {"timeout": PATIENCE},
        **ANY_PORT,
        **settings,
    }
    async with verifier(VerifierSettings.load(None, given)) as server, connected(server.address) as client:
        async with asyncio.timeout(PATIENCE):
            while any(each.state != "ready" for each in (await client.info()).drafters):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        yield client


@asynccontextmanager
async def pair(target: Path, draft: Path, **drafting: Any) -> AsyncIterator[Client]:
    """Yield a client of a verifier with one real drafter. `drafting` are settings of the drafter."""
    async with running_drafter(draft, **drafting) as running, running_verifier(target, running.address) as client:
        yield client


async def generate(client: Client, asks: Iterable[Ask], at_once: int) -> list[Done]:
    """Run all generations, `at_once` of them at any time so that batches are ragged, and return them in order."""
    waiting = iter(enumerate(asks))
    done: dict[int, Done] = {}

    async def work() -> None:
        for number, ask in waiting:
            done[number] = Done(await client.rounds(**call(ask), session=f"s{number}"))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(work())
    return [done[number] for number in range(len(done))]


def call(ask: Ask) -> dict[str, Any]:
    """Return the arguments of a client's call."""
    return {
        "tokens": ask.prompt + ask.committed,
        "prompt_len": len(ask.prompt),
        "params": ask.params,
        "max_tokens": ask.max_tokens,
        "stop": ask.stop,
        "mode": ask.mode,
        "gamma": ask.gamma,
        "lenience": ask.lenience,
        "logprobs": ask.logprobs,
        "drafter": ask.drafter,
        "prediction": ask.prediction,
        "tree": ask.tree,
        "adapter": ask.adapter,
    }
