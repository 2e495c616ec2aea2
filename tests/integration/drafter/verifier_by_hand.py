"""A hand-written verifier that sends what a test specifies on one stream to a drafter."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import accumulate

import grpc.aio

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.draft import PROTOCOL, DraftTokens, draft_from_pb
from specdec.wire.params import mode_to_pb, sampling_to_pb
from specdec.wire.tokens import tokens_to_bytes

PROMPT = (5, 9, 17, 3)
PARAMS = SamplingParams(seed=11)
PATIENCE = 30.0
"""Seconds that a test waits for an expected frame."""


class Verifier:
    """One stream to a drafter; received frames are kept."""

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
        """Return the chunks of the session's first `count` tokens after `skip`. Both fall on ends of chunks."""
        await self.until(lambda: sum(len(chunk.draft.tokens) for chunk in self._drafts(session_id)) >= skip + count)
        ends = accumulate(len(chunk.draft.tokens) for chunk in self._drafts(session_id))
        return [chunk for chunk, end in zip(self._drafts(session_id), ends, strict=True) if skip < end <= skip + count]

    @property
    def nacks(self) -> list[tuple[str, pb.Nack.Reason.ValueType]]:
        return [(nack.session_id, nack.reason) for frame in self.frames for nack in frame.nacks]

    def _drafts(self, session_id: str) -> list[DraftTokens]:
        sent = (draft for frame in self.frames for draft in frame.drafts if draft.session_id == session_id)
        return [draft_from_pb(draft) for draft in sent]


def opening(
    session_id: str = "s",
    tokens: Sequence[int] = PROMPT,
    mode: Mode = Mode.REJECTION,
    params: SamplingParams = PARAMS,
    **fields: int,
) -> pb.Open:
    """Return the message with which a verifier opens a session."""
    return pb.Open(
        session_id=session_id,
        tokens=tokens_to_bytes(tokens),
        prompt_len=len(PROMPT),
        sampling=sampling_to_pb(params),
        mode=mode_to_pb(mode),
        **({"epoch": 1, "gamma": 4, "max_len": 64} | fields),
    )
