"""A drafter as it is served: tiny Hugging Face model, real worker, real port; and a verifier written by hand."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import accumulate
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import Tensor

from drafter_service.app import RunningDrafter, drafter
from drafter_service.config import DrafterSettings
from drafter_service.service import SERVICE
from protos.drafter.v1 import drafter_pb2 as pb
from protos.drafter.v1 import drafter_pb2_grpc
from specdec.engine import Chunk, NativeEngine
from specdec.rules.params import Mode, SamplingParams
from specdec.rules.proposal import propose
from specdec.rules.sampling import History, probabilities
from specdec.serving.channel import open_channel
from specdec.wire.draft import PROTOCOL, DraftTokens, draft_from_pb
from specdec.wire.params import mode_to_pb, sampling_to_pb
from specdec.wire.tokens import tokens_to_bytes
from tests.tiny_models import make_tiny_model

SUPPORT = 8
PROMPT = (5, 9, 17, 3)
PARAMS = SamplingParams(seed=11)
PATIENCE = 30.0
Row = tuple[int, list[int], object]
"""A token and the ids and weights it was drawn from; the reference's weights forgive what another batch rounds."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("drafter") / "tiny", seed=3)


@pytest.fixture(scope="session")
def engine(folder: Path) -> NativeEngine:
    """The same model, without any service around it."""
    return NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**24, threads=1)


class Verifier:
    """One stream to a drafter; what is read is kept."""

    def __init__(
        self, call: "grpc.aio.StreamStreamCall[pb.DraftRequest, pb.DraftResponse]", tokenizer_hash: str
    ) -> None:
        self.call = call
        self.frames: list[pb.DraftResponse] = []
        self._hash = tokenizer_hash

    async def hello(
        self, tokenizer_hash: str | None = None, protocol: int = PROTOCOL, verifier_id: str = "by hand"
    ) -> pb.HelloAck:
        hello = pb.Hello(protocol=protocol, verifier_id=verifier_id, tokenizer_hash=tokenizer_hash or self._hash)
        await self.send(pb.DraftRequest(hello=hello))
        return (await self.read()).hello_ack

    async def send(self, request: pb.DraftRequest) -> None:
        await self.call.write(request)

    async def open(self, *opens: pb.Open) -> None:
        await self.send(pb.DraftRequest(opens=opens))

    async def commit(self, session_id: str, base_len: int, tokens: list[int], gamma: int = 4) -> None:
        commit = pb.Commit(
            session_id=session_id, epoch=1, base_len=base_len, tokens=tokens_to_bytes(tokens), gamma=gamma
        )
        await self.send(pb.DraftRequest(commits=[commit]))

    async def read(self) -> pb.DraftResponse:
        async with asyncio.timeout(PATIENCE):
            response = await self.call.read()
        assert isinstance(response, pb.DraftResponse)
        self.frames.append(response)
        return response

    async def until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            await self.read()

    async def drafts(self, session_id: str, count: int, skip: int = 0) -> list[DraftTokens]:
        """The chunks of the session's first `count` tokens behind `skip`; both are where chunks end."""
        await self.until(lambda: sum(len(chunk.draft.tokens) for chunk in self._drafts(session_id)) >= skip + count)
        ends = accumulate(len(chunk.draft.tokens) for chunk in self._drafts(session_id))
        return [chunk for chunk, end in zip(self._drafts(session_id), ends, strict=True) if skip < end <= skip + count]

    @property
    def nacks(self) -> list[tuple[str, pb.Nack.Reason.ValueType]]:
        return [(nack.session_id, nack.reason) for frame in self.frames for nack in frame.nacks]

    def _drafts(self, session_id: str) -> list[DraftTokens]:
        sent = (draft for frame in self.frames for draft in frame.drafts if draft.session_id == session_id)
        return [draft_from_pb(draft) for draft in sent]


class Service:
    """A drafter that runs, and how to reach it."""

    def __init__(self, running: RunningDrafter, tokenizer_hash: str) -> None:
        self._running = running
        self._hash = tokenizer_hash

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Verifier]:
        """A stream before its handshake."""
        async with open_channel(self._running.address) as channel:
            call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft()
            try:
                yield Verifier(call, self._hash)
            finally:
                call.cancel()

    @asynccontextmanager
    async def verifier(self, verifier_id: str = "by hand") -> AsyncIterator[Verifier]:
        """A stream after its handshake."""
        async with self.stream() as verifier:
            await verifier.hello(verifier_id=verifier_id)
            yield verifier

    async def healthy(self) -> bool:
        """Whether the drafter says that it serves."""
        async with open_channel(self._running.address) as channel:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def metric(self, name: str) -> float:
        """A metric, summed over its labels; 0 when nothing was counted."""
        body = await asyncio.to_thread(self._scrape)
        return sum(float(line.split()[-1]) for line in body.splitlines() if re.match(rf"{name}[ {{]", line))

    async def until(self, name: str, value: float) -> None:
        """Wait until a metric has that value."""
        async with asyncio.timeout(PATIENCE):
            while await self.metric(name) != value:  # noqa: ASYNC110 - another process's state, as it were
                await asyncio.sleep(0.01)

    def _scrape(self) -> str:
        with urllib.request.urlopen(f"http://{self._running.http}/metrics", timeout=PATIENCE) as reply:
            return str(reply.read().decode())


Serve = Callable[..., AbstractAsyncContextManager[Service]]


@pytest.fixture
def serve(folder: Path, engine: NativeEngine) -> Serve:
    """Run a drafter with the settings given."""

    @asynccontextmanager
    async def run(**settings: object) -> AsyncIterator[Service]:
        given = {"model": {"path": folder}, "address": "127.0.0.1:0", "support": SUPPORT, "ahead": 0, "kv_bytes": 2**22}
        async with drafter(DrafterSettings.load(None, given | settings)) as running:
            await running.ready()
            yield Service(running, engine.tokenizer_hash)

    return run


@pytest.fixture
async def service(serve: Serve) -> AsyncIterator[Service]:
    """A drafter that does not draft ahead."""
    async with serve() as service:
        yield service


def opening(
    session_id: str = "s",
    tokens: Sequence[int] = PROMPT,
    mode: Mode = Mode.REJECTION,
    params: SamplingParams = PARAMS,
    **fields: int,
) -> pb.Open:
    """A session as a verifier opens it."""
    return pb.Open(
        session_id=session_id,
        tokens=tokens_to_bytes(tokens),
        prompt_len=len(PROMPT),
        sampling=sampling_to_pb(params),
        mode=mode_to_pb(mode),
        **({"epoch": 1, "gamma": 4, "max_len": 64} | fields),
    )


def reference(
    engine: NativeEngine,
    count: int,
    tokens: Sequence[int] = PROMPT,
    mode: Mode = Mode.REJECTION,
    params: SamplingParams = PARAMS,
) -> list[Row]:
    """What is to be drafted behind `tokens`, computed with a fresh pass over the whole prefix each time."""
    rows: list[Row] = []
    for _ in range(count):
        prefix = [*tokens, *(token for token, _, _ in rows)]
        q = probabilities(_logits(engine, prefix), [params], [History(prefix[: len(PROMPT)], prefix[len(PROMPT) :])])
        (token,), probs = propose(mode, q, [params.seed], [len(prefix)], SUPPORT, starts=[len(tokens)])
        ids, weights = (probs[0].ids.tolist(), probs[0].weights.tolist()) if probs else ([], [])
        rows.append((token, ids, pytest.approx(weights, abs=2)))
    return rows


def received(chunks: Sequence[DraftTokens]) -> list[Row]:
    """What the chunks hold, in the form of `reference`."""
    rows: list[Row] = []
    for chunk in chunks:
        supports = [(probs.ids.tolist(), probs.weights.tolist()) for probs in chunk.draft.probs]
        drawn = zip(chunk.draft.tokens, supports or [([], [])] * len(chunk.draft.tokens), strict=True)
        rows += [(token, *support) for token, support in drawn]
    return rows


def _logits(engine: NativeEngine, prefix: list[int]) -> Tensor:
    assert engine.admit("reference", len(prefix))
    try:
        return engine.forward([Chunk("reference", prefix, logits=1)])
    finally:
        engine.release("reference")
