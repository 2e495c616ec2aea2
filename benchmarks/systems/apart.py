"""A verifier and drafters as processes with slowed models, connected by a network with a round trip time."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import environment
from benchmarks.pair import Pair
from benchmarks.run import Ask, call_of, pace
from benchmarks.systems.delay import DelayingProxy
from benchmarks.systems.steady import steady_rate
from specdec.cli.local.plan import PRELOAD
from specdec.cli.local.ports import Wanted, allot
from specdec.cli.local.processes import Child, ChildCommand, Children
from specdec.errors import InternalError
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.protos.verifier.v1 import verifier_pb2_grpc
from specdec.serving.rpc.channel import open_channel
from specdec.wire.generation import Round, call_to_pb, info_from_pb, round_from_pb

_START_SECONDS = 180.0
_ANSWER_SECONDS = 10.0
_STOP_SECONDS = 60.0
_LOG_LINES = 60
"""Number of log lines shown. PyTorch's libraries write about forty lines when a process ends early."""


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A drafter to be started."""

    settings: Mapping[str, str]
    """Environment variables, without their prefix."""
    fault: str = ""
    """One of `slow`, `lying` and `dead`, or "". A dead drafter is not started."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Duration of a pass of a slowed model, in seconds."""

    base: float
    token: float = 0.0
    """Additional time for each token that the pass computes."""
    device: str = field(default="", kw_only=True)
    """File of a device that runs one pass at a time, or "" for a model with its own device."""

    def seconds(self, tokens: int) -> float:
        """Return the time of a pass that computes `tokens` tokens."""
        return self.base + self.token * tokens


@dataclass(frozen=True, slots=True)
class Slice:
    """Generations that ran at once."""

    speed: float
    """Tokens a second."""
    rounds: int
    drafted: int
    accepted: int
    paces: tuple[float, ...]
    """Tokens a second of each generation after its first round."""

    @property
    def slowest(self) -> float:
        """The least of the paces."""
        return min(self.paces)


@dataclass(frozen=True, slots=True)
class Apart:
    """A running verifier, and the proxies through which it reaches its drafters."""

    address: str
    proxies: Mapping[str, DelayingProxy]
    reasons: Counter[str] = field(default_factory=Counter)
    """Reasons why rounds of steady loads had no drafts, counted."""

    def round_trip(self, seconds: float) -> None:
        """Set the round trip between verifier and drafters. Each message takes half of it from now on."""
        for proxy in self.proxies.values():
            proxy.round_trip = seconds

    def together(self, asks: Sequence[Ask], *drafters: str) -> Slice:
        """Run all generations at once, with the named drafters in rotation."""
        return asyncio.run(self._together(asks, [self.proxies[each].address for each in drafters]))

    def steady(
        self, asks: Sequence[Ask], streams: int, seconds: float, drafter: str, burst: Sequence[Ask] = ()
    ) -> float:
        """Return the tokens a second of `streams` clients, with the named drafter."""
        return asyncio.run(self._steady(asks, streams, seconds, self.proxies[drafter].address, burst))

    async def _steady(
        self, asks: Sequence[Ask], streams: int, seconds: float, drafter: str, burst: Sequence[Ask]
    ) -> float:
        async with open_channel(self.address) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            return await steady_rate(partial(_counts, stub, drafter, self.reasons), asks, streams, seconds, burst)

    async def _together(self, asks: Sequence[Ask], drafters: Sequence[str]) -> Slice:
        async with open_channel(self.address) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            await channel.channel_ready()
            started = time.perf_counter()
            runs = await asyncio.gather(*map(_generate, repeat(stub), asks, cycle(drafters)))
            seconds = time.perf_counter() - started
        done = [each for _, rounds in runs for each in rounds]
        return Slice(
            sum(len(each.tokens) for each in done) / seconds,
            len(done),
            sum(len(each.draft) for each in done),
            sum(each.accepted for each in done),
            tuple(pace(times, [len(each.tokens) for each in rounds]) for times, rounds in runs),
        )


@contextmanager
def apart(
    pair: Pair,
    steps: tuple[StepTime, StepTime],
    drafters: Mapping[str, DrafterSpec],
    verifier_settings: Mapping[str, str],
) -> Iterator[Apart]:
    """Run a verifier and its drafters, and wait until they are ready.

    Args:
        steps: times of a pass of the target, and of a pass of a drafter.
        verifier_settings: environment variables of the verifier, without their prefix.
    """
    (verifier,), *served = allot([Wanted("", "127.0.0.1:0", 1)] * (1 + len(drafters)))
    with ExitStack() as running:
        children = running.enter_context(Children(_STOP_SECONDS))
        logs = Path(running.enter_context(TemporaryDirectory()))
        proxies = {}
        for (name, spec), (address,) in zip(drafters.items(), served, strict=True):
            if spec.fault != "dead":
                settings = {"ADDRESS": address, "MODEL__PATH": str(pair.drafter), **spec.settings}
                _start(children, logs / name, spec.fault or "drafter", steps[1], settings)
            proxies[name] = running.enter_context(DelayingProxy(address))
        settings = {
            "ADDRESS": verifier,
            "MODEL__PATH": str(pair.target),
            **verifier_settings,
            "DRAFTERS": "[" + ",".join(f'"{each.address}"' for each in proxies.values()) + "]",
        }
        process = _start(children, logs / "verifier", "verifier", steps[0], settings)
        ready = {proxies[name].address for name, spec in drafters.items() if spec.fault != "dead"}
        asyncio.run(_await_ready(process, verifier, ready))
        yield Apart(verifier, proxies)


def _start(children: Children, log: Path, role: str, step: StepTime, settings: Mapping[str, str]) -> Child:
    prefix = "SPECDEC_VERIFIER_" if role == "verifier" else "SPECDEC_DRAFTER_"
    own = {prefix + name: value for name, value in settings.items()}
    argv = (sys.executable, "-m", "benchmarks.systems.slowed", role, str(step.base), str(step.token), step.device)
    return children.start(ChildCommand(log.name, role, argv, log, "", PRELOAD["verifier"]), environment() | own)


async def _await_ready(process: Child, address: str, drafters: set[str]) -> None:
    """Wait until the verifier serves and has met its drafters."""
    deadline = time.monotonic() + _START_SECONDS
    async with open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        while True:
            try:
                info = info_from_pb(await stub.GetVerifierInfo(pb.GetVerifierInfoRequest(), timeout=_ANSWER_SECONDS))
            except Exception:  # noqa: BLE001 - it is still loading its model
                info = None
            if info and drafters <= {each.address for each in info.drafters if each.state == "ready"}:
                return
            if process.exit_status is not None or time.monotonic() > deadline:
                met, wrote = info and info.drafters, process.log_tail(_LOG_LINES)
                raise InternalError(f"the verifier has met {met}; the last that it wrote:\n{wrote}")
            await asyncio.sleep(0.1)


async def _generate(
    stub: "verifier_pb2_grpc.VerifierServiceAsyncStub", ask: Ask, drafter: str
) -> tuple[list[float], list[Round]]:
    """Yield the rounds of a generation, and the time of each."""
    times, rounds = list[float](), list[Round]()
    async for each in stub.Generate(call_to_pb(call_of(replace(ask, drafter=drafter)))):
        times.append(time.perf_counter())
        rounds.append(round_from_pb(each))
    return times, rounds


async def _counts(
    stub: "verifier_pb2_grpc.VerifierServiceAsyncStub", drafter: str, reasons: Counter[str], ask: Ask
) -> AsyncGenerator[int]:
    """Yield the number of tokens of each round, and count the `reasons`."""
    rounds = stub.Generate(call_to_pb(call_of(replace(ask, drafter=drafter))))
    try:
        async for each in rounds:
            done = round_from_pb(each)
            reasons[done.fallback] += 1
            yield len(done.tokens)
    finally:
        rounds.cancel()
