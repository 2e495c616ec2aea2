"""The whole system under load: `specdec up` in its own processes, and a client that records the times of rounds."""

import asyncio
import json
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.machine import ROOT, environment, resident_bytes
from benchmarks.pair import Pair
from benchmarks.run import Ask, Run, gaps_of
from benchmarks.systems.steady import steady_rate
from specdec.cli.local import child_process
from specdec.errors import InternalError
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc
from specdec.rules.speculation import Mode
from specdec.serving.rpc.channel import open_channel
from specdec.wire.params import GAMMA_POLICY, mode_to_pb

_START_SECONDS = 600.0
"""Timeout of this client. `specdec up` has its own."""
_PORTS = ("--http", "--grpc", "--drafter-address", "--verifier-address", "--drafter-metrics", "--verifier-metrics")
"""Address options. They get free ports, so that two systems never conflict."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A running system."""

    address: str
    pids: dict[str, int]
    http: dict[str, str]
    log: Path
    """File with the output of `specdec up`."""
    pid: int = 0
    """Process of `specdec up`, the parent of all others."""
    roles: Mapping[int, str] = field(default_factory=dict)
    """Roles of the processes, by pid."""

    def generate(self, ask: Ask) -> Run:
        """Run one generation alone."""
        return self.together([ask])[0]

    def together(self, asks: Sequence[Ask]) -> list[Run]:
        """Run all generations at once."""
        return asyncio.run(self._together(asks))

    async def _together(self, asks: Sequence[Ask]) -> list[Run]:
        async with open_channel(self.address) as channel:
            stub = gateway_pb2_grpc.GenerationServiceStub(channel)
            await channel.channel_ready()
            return await asyncio.gather(*(_stream(stub, ask) for ask in asks))

    def steady(self, asks: Sequence[Ask], streams: int, seconds: float, burst: Sequence[Ask] = ()) -> float:
        """Return the tokens a second of `streams` clients."""
        return asyncio.run(self._steady(asks, streams, seconds, burst))

    async def _steady(self, asks: Sequence[Ask], streams: int, seconds: float, burst: Sequence[Ask]) -> float:
        async with open_channel(self.address) as channel:
            answer = partial(_counts, gateway_pb2_grpc.GenerationServiceStub(channel))
            return await steady_rate(answer, asks, streams, seconds, burst)

    def resident_bytes(self) -> dict[str, int]:
        """Return the resident bytes of each process."""
        return {role: resident_bytes(pid) for role, pid in self.pids.items()}

    def metrics(self, role: str) -> dict[str, float]:
        """Return metrics of a process by the sample's name, followed by its label values after slashes."""
        with urllib.request.urlopen(f"http://{self.http[role]}/metrics", timeout=10) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return {"/".join([each.name, *each.labels.values()]): each.value for one in families for each in one.samples}


@contextmanager
def running(pair: Pair, *arguments: str, **settings: str) -> Iterator[Stack]:
    """Run `specdec up` on free ports with one drafter, one verifier, one gateway and its own store.

    Args:
        pair: the models.
        arguments: arguments of the command.
        settings: environment variables.
    """
    with TemporaryDirectory() as folder:
        state = Path(folder) / "state.json"
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                _command(pair, state, arguments), cwd=ROOT, env=environment() | settings, stdout=log, stderr=log
            )
            try:
                _await_state(process, state, log.name)
                entries = json.loads(state.read_text(encoding="utf-8"))
                gateway = next(entry["grpc"] for entry in entries if entry["role"] == "gateway")
                roles = {entry["pid"]: entry["role"] for entry in entries}
                pids = {role: pid for pid, role in roles.items()}
                http = {entry["role"]: entry["http"] for entry in entries}
                yield Stack(gateway, pids, http, Path(log.name), process.pid, roles)
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=60)


def _command(pair: Pair, state: Path, arguments: Sequence[str]) -> list[str]:
    ports = [part for option in _PORTS for part in (option, "127.0.0.1:0")]
    start = "from specdec.cli.app import main; main()"
    models = ["--target", str(pair.target), "--drafter", str(pair.drafter)]
    command = [sys.executable, "-c", start, "up", "--no-sample", "--state", str(state)]
    return child_process.tied(*command, *ports, *models, *arguments)


def _await_state(process: "subprocess.Popen[bytes]", state: Path, log: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not state.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise InternalError(f"`specdec up` did not start:\n{Path(log).read_text(encoding='utf-8')}")
        time.sleep(0.05)


async def _stream(stub: "gateway_pb2_grpc.GenerationServiceAsyncStub", ask: Ask) -> Run:
    started = time.perf_counter()
    times, counts, tokens = list[float](), list[int](), list[int]()
    finished = pb.Finished()
    async for event in stub.StreamGenerate(_streamed(ask)):
        if event.HasField("round"):
            times.append(time.perf_counter())
            counts.append(len(event.round.tokens))
            tokens += [token.id for token in event.round.tokens]
        elif event.HasField("finished"):
            finished = event.finished
    summary = finished.speculation
    rounds, accepted = summary.num_spec_steps + summary.num_plain_steps, summary.num_accepted_draft_tokens
    return Run(
        tuple(tokens), time.perf_counter() - started, times[0] - started, counts[0], rounds, accepted,
        gaps=gaps_of(times),
    )  # fmt: skip


async def _counts(stub: "gateway_pb2_grpc.GenerationServiceAsyncStub", ask: Ask) -> AsyncGenerator[int]:
    """Yield the number of tokens of each round."""
    call = stub.StreamGenerate(_streamed(ask))
    try:
        async for event in call:
            if event.HasField("round"):
                yield len(event.round.tokens)
    finally:
        call.cancel()


def _streamed(ask: Ask) -> pb.StreamGenerateRequest:
    mode = Mode.OFF if ask.gamma == 0 else Mode.REJECTION
    request = pb.GenerateRequest(
        tokens=pb.TokenPrompt(token_ids=ask.prompt),
        sampling=pb.SamplingOptions(temperature=ask.temperature, seed=ask.seed),
        stop=pb.StopOptions(max_tokens=ask.tokens, ignore_eos=True),
        speculation=pb.SpeculationOptions(
            mode=mode_to_pb(mode), gamma=ask.gamma or None, policy=GAMMA_POLICY.to_pb(ask.policy)
        ),
        cache_salt=secrets.token_hex(8),  # prompts repeat, and each request must cost the same as the first
    )
    return pb.StreamGenerateRequest(request=request)
