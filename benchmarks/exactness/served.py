"""The pair as separate processes: speed of every mode against plain decoding, and bytes on the wire."""

import asyncio
import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.exactness.pair import DRAFTER, TARGET
from specdec.cli.local.ports import free
from specdec.cli.local.processes import ChildCommand, Children
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.protos.verifier.v1 import verifier_pb2_grpc
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.channel import open_channel
from specdec.wire.params import mode_to_pb, sampling_to_pb
from specdec.wire.tokens import tokens_to_bytes

HOST = "127.0.0.1"
START_SECONDS = 120.0
PATIENCE = 5.0
"""Seconds that a round waits for its draft, so that the measurement includes no timeouts."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of the two processes."""

    verifier: str
    drafter_http: str


@dataclass(frozen=True)
class Speed:
    """Speed of one mode at one temperature, one session at a time."""

    mode: Mode
    tokens_per_second: float
    """Median over the repeats, in tokens a second."""
    bytes_per_round: float
    """All bytes that the drafter sends, including drafts ahead of need, divided by the rounds with a draft."""


@contextmanager
def services(folder: Path) -> Iterator[Addresses]:
    """Run a drafter and a verifier of the demo pair."""
    drafter, drafter_http, verifier, verifier_http = (f"{HOST}:{free(HOST)}" for _ in range(4))
    with Children() as children:
        _start(children, folder, "drafter", DRAFTER, {"ADDRESS": drafter, "HTTP": drafter_http})
        own = {"DRAFTERS": f'["{drafter}"]', "DRAFTING__TIMEOUT": str(PATIENCE)}
        _start(children, folder, "verifier", TARGET, {"ADDRESS": verifier, "HTTP": verifier_http, **own})
        asyncio.run(_ready(verifier))
        yield Addresses(verifier, drafter_http)


def compare(
    at: Addresses, temperature: float, gamma: int, prompts: Sequence[tuple[int, ...]], length: int, repeats: int
) -> list[Speed]:
    """Run every mode on the same prompts and seeds, in turn, so that a drift of the machine affects all equally."""
    return asyncio.run(_compare(at, SamplingParams(temperature=temperature), gamma, prompts, length, repeats))


async def _compare(
    at: Addresses,
    params: SamplingParams,
    gamma: int,
    prompts: Sequence[tuple[int, ...]],
    length: int,
    repeats: int,
) -> list[Speed]:
    speeds: dict[Mode, list[float]] = {mode: [] for mode in Mode}
    sent: dict[Mode, float] = dict.fromkeys(Mode, 0.0)
    rounds: dict[Mode, int] = dict.fromkeys(Mode, 0)
    async with open_channel(at.verifier) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        for turn in range(repeats + 1):
            for mode in Mode:
                before, started, tokens, drafted = _bytes_sent(at), time.perf_counter(), 0, 0
                for seed, prompt in enumerate(prompts):
                    request = _request(f"{turn}/{mode}/{seed}", mode, replace(params, seed=seed), gamma, prompt, length)
                    async for response in stub.Generate(request):
                        tokens += len(response.tokens) // 4
                        drafted += bool(response.draft_tokens)
                if turn:  # the first turn is a warm-up
                    speeds[mode].append(tokens / (time.perf_counter() - started))
                    sent[mode] += _bytes_sent(at) - before
                    rounds[mode] += drafted
    return [Speed(mode, statistics.median(speeds[mode]), sent[mode] / max(1, rounds[mode])) for mode in Mode]


def _request(
    session: str, mode: Mode, params: SamplingParams, gamma: int, prompt: tuple[int, ...], length: int
) -> pb.GenerateRequest:
    speculation = pb.Speculation(mode=mode_to_pb(mode), gamma=None if mode is Mode.OFF else gamma)
    return pb.GenerateRequest(
        session_id=session,
        epoch=1,
        tokens=tokens_to_bytes(prompt),
        prompt_len=len(prompt),
        sampling=sampling_to_pb(params),
        max_tokens=length,
        speculation=speculation,
    )


def _start(children: Children, folder: Path, role: str, model: Path, settings: dict[str, str]) -> None:
    prefix = f"SPECDEC_{role.upper()}_"
    own = {"MODEL__PATH": str(model), "LOG__LEVEL": "error", **settings}
    argv = [sys.executable, "-m", f"{role}_service"]
    environment = os.environ | {prefix + name: value for name, value in own.items()} | {"OMP_NUM_THREADS": "1"}
    children.start(ChildCommand(role, role, argv, folder / f"{role}.log", " ".join(argv)), environment)


async def _ready(verifier: str) -> None:
    """Wait until the verifier serves and has met its drafter."""
    async with asyncio.timeout(START_SECONDS), open_channel(verifier) as channel:
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)
        while not await _has_met_its_drafter(stub):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)


async def _has_met_its_drafter(stub: Any) -> bool:
    try:
        info = await stub.GetVerifierInfo(pb.GetVerifierInfoRequest(), wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return bool(info.drafters) and all(drafter.state == "ready" for drafter in info.drafters)


def _bytes_sent(at: Addresses) -> float:
    with urllib.request.urlopen(f"http://{at.drafter_http}/metrics", timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    return samples["specdec_drafter_bytes_sent_total"]
